//! Messages as JSON, one to a line.

use pvc_ports::{
    MOST_SCRIPT_LINE_BYTES, ScriptFailure, ScriptJob, ScriptLevel, ScriptMessage, ScriptOrder,
};
use serde_json::{Map, Value, json};

/// The most bytes of a traceback; the end of it says most.
const MOST_TRACEBACK_BYTES: usize = 16 << 10;

/// Memory that is left to a script's processes by a full `/tmp`.
const LEAST_MEMORY_BESIDE_TMP: u64 = 32 << 20;

/// The first message: what the script is told.
pub fn job(job: &ScriptJob, script: &str, root: &str) -> String {
    let mut facts = job.facts.clone();
    facts.insert("script".to_owned(), script.into());
    facts.insert("root".to_owned(), root.into());
    facts.insert("tmp_bytes".to_owned(), tmp_bytes(job.memory_bytes).into());
    json!({ "job": facts }).to_string()
}

/// Room in a script's `/tmp`, which counts as memory: where it is full the script's processes still
/// have some, so that it fails in words, and cleans up, before the kernel kills it.
fn tmp_bytes(memory_bytes: u64) -> u64 {
    // Not 0, which would be no limit.
    memory_bytes.saturating_sub((memory_bytes / 8).max(LEAST_MEMORY_BESIDE_TMP)).max(1 << 20)
}

pub fn order(order: &ScriptOrder) -> String {
    match order {
        ScriptOrder::Run(phase) => json!({ "phase": phase.word() }),
        ScriptOrder::Returned(value) => json!({ "returned": value }),
        ScriptOrder::Raised(why) => json!({ "raised": why }),
    }
    .to_string()
}

/// The message of a line.
///
/// # Errors
/// The reason why it is none.
pub fn message(line: &[u8]) -> Result<ScriptMessage, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let Value::Object(object) = value else { return Err("it is no object".to_owned()) };
    let mut entries = object.into_iter();
    let (Some((key, value)), None) = (entries.next(), entries.next()) else {
        return Err("it has not one key".to_owned());
    };
    match (key.as_str(), value) {
        ("ready", _) => Ok(ScriptMessage::Ready),
        ("done", value) => Ok(ScriptMessage::Done(value)),
        ("log", Value::Object(log)) => {
            let level = match text(&log, "level").as_str() {
                "warning" => ScriptLevel::Warning,
                "error" => ScriptLevel::Error,
                _ => ScriptLevel::Info,
            };
            Ok(ScriptMessage::Log { level, text: cut(&text(&log, "text")) })
        }
        ("failed", Value::Object(failed)) => {
            let traceback = text(&failed, "traceback");
            let mut begin = traceback.len().saturating_sub(MOST_TRACEBACK_BYTES);
            while !traceback.is_char_boundary(begin) {
                begin += 1;
            }
            Ok(ScriptMessage::Failed(ScriptFailure {
                class: cut(&text(&failed, "class")),
                text: cut(&text(&failed, "text")),
                traceback: traceback[begin..].to_owned(),
            }))
        }
        ("call", Value::Object(mut call)) => {
            let function = text(&call, "function");
            match call.remove("arguments") {
                Some(Value::Object(arguments)) => Ok(ScriptMessage::Call { function, arguments }),
                _ => Err("a call has no arguments".to_owned()),
            }
        }
        (key, _) => Err(format!("`{}` is not known", cut(key))),
    }
}

fn text(object: &Map<String, Value>, key: &str) -> String {
    object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The text as far as a line may be long.
pub fn cut(text: &str) -> String {
    let mut end = text.len().min(MOST_SCRIPT_LINE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use pvc_ports::ScriptPhase;

    use super::*;

    #[test]
    fn a_full_tmp_leaves_memory_to_the_processes() {
        let room = |mib: u64| tmp_bytes(mib << 20) >> 20;
        assert_eq!([4096, 512, 64, 32].map(room), [3584, 448, 32, 1]);
    }

    #[test]
    fn messages_are_read_as_the_document_has_them() {
        let read = |text: &str| message(text.as_bytes());
        assert_eq!(read(r#"{"ready": true}"#), Ok(ScriptMessage::Ready));
        let log = ScriptMessage::Log { level: ScriptLevel::Error, text: "x".to_owned() };
        assert_eq!(read(r#"{"log": {"level": "error", "text": "x"}}"#), Ok(log));
        assert_eq!(read(r#"{"done": null}"#), Ok(ScriptMessage::Done(Value::Null)));
        let failed = r#"{"failed": {"class": "A", "text": "b", "traceback": "c"}}"#;
        let [class, text, traceback] = ["A", "b", "c"].map(str::to_owned);
        let failure = ScriptFailure { class, text, traceback };
        assert_eq!(read(failed), Ok(ScriptMessage::Failed(failure)));
        let call = read(r#"{"call": {"function": "f", "arguments": {"a": 1}}}"#);
        let Ok(ScriptMessage::Call { function, arguments }) = call else { panic!("{call:?}") };
        assert_eq!((function.as_str(), &arguments["a"]), ("f", &json!(1)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        for bad in ["", "x", "[]", "{}", r#"{"call": {"function": "f"}}"#, r#"{"log": 1}"#, &deep] {
            assert!(message(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(message(br#"{"ready": true, "done": 1}"#).is_err());
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "ä".repeat(MOST_SCRIPT_LINE_BYTES);
        assert_eq!(cut(&long).len(), MOST_SCRIPT_LINE_BYTES);
        let odd = format!("x{long}");
        assert_eq!(cut(&odd).len(), MOST_SCRIPT_LINE_BYTES - 1);
    }

    #[test]
    fn orders_are_written_as_the_document_has_them() {
        assert_eq!(order(&ScriptOrder::Run(ScriptPhase::Setup)), r#"{"phase":"setup"}"#);
        let returned = ScriptOrder::Returned(json!([true, "x"]));
        assert_eq!(order(&returned), r#"{"returned":[true,"x"]}"#);
        assert_eq!(order(&ScriptOrder::Raised("y".to_owned())), r#"{"raised":"y"}"#);
    }
}
