//! Web pages: what a proxy, a login portal or some other server answers where the API should.

/// The title of a web page, quoted behind a space, or nothing for one without a title. `None` if
/// the body is no web page.
pub fn title(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&body[..body.len().min(4096)]);
    let small = text.trim_start().to_ascii_lowercase();
    if !["<!doctype html", "<html", "<head", "<h1", "<?xml"]
        .iter()
        .any(|start| small.starts_with(start))
    {
        return None;
    }
    let inside = |open: &str, close: &str| {
        let begin = small.find(open)? + open.len();
        let end = begin + small[begin..].find(close)?;
        Some(text.trim_start()[begin..end].trim().to_owned())
    };
    let title = inside("<title>", "</title>").or_else(|| inside("<h1>", "</h1>"));
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    let title: String = title.unwrap_or_default().chars().take(60).map(printable).collect();
    Some(if title.is_empty() { String::new() } else { format!(" (`{title}`)") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_recognized_by_its_first_tag_and_named_by_its_title() {
        let page = b"\n<!DOCTYPE html>\n<html><head><title> 502 Bad\nGateway </title>";
        assert_eq!(title(page), Some(" (`502 Bad Gateway`)".to_owned()));
        assert_eq!(title(b"<h1>Not Found</h1>"), Some(" (`Not Found`)".to_owned()));
        assert_eq!(title(b"<html></html>"), Some(String::new()));
        assert_eq!(title(b"hello <html>"), None);
        assert_eq!(title(b""), None);
    }

    #[test]
    fn a_page_that_is_cut_in_a_letter_does_no_harm() {
        let page = format!("<html>{}", "\u{1e9e}".repeat(4000));
        assert_eq!(title(page.as_bytes()), Some(String::new()));
    }
}
