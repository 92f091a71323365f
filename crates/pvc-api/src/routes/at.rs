//! The variable parts of a path.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{Object, Required, Type};

use crate::error::ApiError;
use crate::state::ApiState;

/// All of them, of any kind.
pub struct At<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<ApiState> for At<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(value)| At(value))
            .map_err(|_| ApiError::refused("the path is not UTF-8 text"))
    }
}

/// The description of one in the API document.
fn describe(name: &str, description: &str) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(Object::with_type(Type::String)))
        .build()
}

/// Declares the only variable part of a path: what it is called there, and what it names.
macro_rules! at {
    ($name:ident, $in_path:literal, $description:literal) => {
        #[doc = $description]
        pub struct $name(pub String);

        impl FromRequestParts<ApiState> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(
                parts: &mut Parts,
                state: &ApiState,
            ) -> Result<Self, ApiError> {
                At::from_request_parts(parts, state).await.map(|At(value)| $name(value))
            }
        }

        impl utoipa::IntoParams for $name {
            fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
                vec![describe($in_path, $description)]
            }
        }
    };
}

at!(AtVm, "vm", "Name or UUID of the VM");
at!(AtNode, "node", "Name of the node");
at!(AtFault, "fault_id", "Identifier of the fault");
at!(AtTask, "task_id", "Identifier of the task");
