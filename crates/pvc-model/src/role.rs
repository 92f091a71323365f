//! Roles of whoever calls the API.

/// Role of a caller; each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Whoever reaches the port: no key is asked for.
    Anybody,
    /// Sees everything but secrets and changes nothing.
    Reader,
    /// Runs VMs, networks and storage.
    Operator,
    /// Whatever reaches the machines themselves, the records as a whole, or secrets.
    Administrator,
}

impl Role {
    /// Words for the roles that a token can have.
    pub const OF_TOKENS: &[&str] = &["reader", "operator", "administrator"];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Anybody => "anybody",
            Role::Reader => "reader",
            Role::Operator => "operator",
            Role::Administrator => "administrator",
        }
    }

    /// The role of a token that is called so.
    pub fn of_token(word: &str) -> Option<Role> {
        [Role::Reader, Role::Operator, Role::Administrator]
            .into_iter()
            .find(|role| role.as_str() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_for_a_token_is_a_role_and_nobody_gets_a_token_for_anybody() {
        for word in Role::OF_TOKENS {
            assert_eq!(Role::of_token(word).map(Role::as_str), Some(*word));
        }
        assert_eq!(Role::of_token("anybody"), None);
        assert_eq!(Role::of_token("Administrator"), None);
    }

    #[test]
    fn each_role_may_do_what_those_before_it_may() {
        assert!(Role::Anybody < Role::Reader);
        assert!(Role::Reader < Role::Operator);
        assert!(Role::Operator < Role::Administrator);
    }
}
