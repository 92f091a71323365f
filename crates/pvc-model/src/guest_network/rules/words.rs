//! Words of a rule of an operator: those that nft would have looked up, and those that name what is
//! one of a kind in a table.

use std::net::IpAddr;

/// Words of a rule, the signs between them, and quoted texts with their quotes.
pub(in crate::guest_network) struct Tokens<'a>(pub(in crate::guest_network) &'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.0 = self.0.trim_start();
        let first = self.0.chars().next()?;
        let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '-' | '/');
        let end = match first {
            '"' => self.0[1..].find('"').map_or(self.0.len(), |end| end + 2),
            _ if is_word(first) => self.0.find(|c| !is_word(c)).unwrap_or(self.0.len()),
            _ if self.0.starts_with("!=") || self.0.starts_with("==") => 2,
            _ => first.len_utf8(),
        };
        let (token, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(token)
    }
}

/// The rule with names of meters of its own: those of a table have to be different, and rules of
/// other networks are in it, too.
pub(super) fn own_meters(rule: &str, prefix: &str) -> String {
    let (mut text, mut copied) = (String::new(), 0);
    let (mut before, mut last) = ("", "");
    let mut tokens = Tokens(rule);
    while let Some(token) = tokens.next() {
        // `flow table NAME` is the former word for it.
        let is_name = last == "meter" || (before, last) == ("flow", "table");
        if is_name && token.starts_with(char::is_alphabetic) && token != "size" {
            let at = rule.len() - tokens.0.len() - token.len();
            text += &rule[copied..at];
            text += prefix;
            text.push('-');
            copied = at;
        }
        (before, last) = (last, token);
    }
    text + &rule[copied..]
}

/// Words after which an address stands.
const KEYS: [&str; 5] = ["saddr", "daddr", "taddr", "nexthop", "gateway"];

/// Words that send a packet to an address, which stands after `to`.
const SENDERS: [&str; 5] = ["dnat", "snat", "tproxy", "dup", "fwd"];

/// Signs and words that go on to another value.
const GOES_ON: [&str; 23] = [
    "!=", "==", "=", "!", "<", ">", "&", "|", "^", "~", "-", "/", ",", "eq", "ne", "lt", "gt",
    "le", "ge", "and", "or", "xor", "(",
];

/// Words between one of [`KEYS`] or `to` and the address.
const BETWEEN: [&str; 7] = ["ip", "ip6", "set", "map", "vmap", ")", "["];

/// Words of nft that may stand after one of [`KEYS`] when no address does.
const INSTEAD: [&str; 22] = [
    "limit", "ct", "counter", "quota", "timeout", "expires", "size", "mod", "seed", "offset",
    "ether", "numgen", "jhash", "symhash", "tcp", "udp", "th", "meta", "rt", "socket", "last",
    "log",
];

/// Follows a rule to the places of addresses. A word that stands there is the name of a host for
/// nft, which asks DNS for it and holds everything up until it is answered.
#[derive(Default)]
pub(super) struct Places {
    /// Of each part of what is compared, as in `ip saddr . tcp dport`, whether it is an address.
    parts: Vec<bool>,
    /// Whether a part follows of which nothing is known yet.
    joins: bool,
    /// Whether the value is there, so that only signs continue it.
    has_value: bool,
    /// Depth of the braces around the values, once there are any.
    braces: Option<usize>,
    /// The part that the next value is of; `None` for what a map leads to.
    part: Option<usize>,
    depth: usize,
    sends: bool,
    is_target: bool,
    is_fib: bool,
}

impl Places {
    /// Takes the next token. Whether nft would look it up.
    pub(super) fn looks_up(&mut self, token: &str) -> bool {
        match token {
            "fib" => self.is_fib = true,
            "type" | "oif" | "oifname" if self.is_fib => self.is_fib = false,
            _ if self.is_fib => {}
            "{" => self.open(),
            "}" => self.close(),
            _ if self.braces.is_some() => return self.is_name_in_braces(token),
            _ if KEYS.contains(&token) => self.key(),
            "to" if self.sends => {
                self.is_target = true;
                self.compare(vec![true]);
            }
            "." if self.has_value => self.has_value = false,
            "." => {
                if self.joins || self.parts.is_empty() {
                    self.parts.push(false);
                }
                self.joins = true;
            }
            _ if GOES_ON.contains(&token) => self.has_value = false,
            _ if BETWEEN.contains(&token) && !self.has_value => {}
            _ => return self.is_name(token),
        }
        false
    }

    fn compare(&mut self, parts: Vec<bool>) {
        (self.parts, self.joins, self.has_value) = (parts, false, false);
    }

    fn key(&mut self) {
        match std::mem::take(&mut self.joins) {
            true => self.parts.push(true),
            false => self.compare(vec![true]),
        }
    }

    fn open(&mut self) {
        self.depth += 1;
        let is_known = !self.parts.is_empty() || self.is_target;
        if self.braces.is_none() && is_known && !self.has_value {
            if self.joins || self.parts.is_empty() {
                self.parts.push(false);
            }
            self.joins = false;
            (self.braces, self.part) = (Some(self.depth), Some(0));
        }
    }

    fn close(&mut self) {
        if self.braces == Some(self.depth) {
            self.braces = None;
            self.compare(Vec::new());
        }
        self.depth = self.depth.saturating_sub(1);
    }

    fn is_name_in_braces(&mut self, token: &str) -> bool {
        match token {
            "," => (self.part, self.has_value) = (Some(0), false),
            "." => (self.part, self.has_value) = (self.part.map(|part| part + 1), false),
            ":" => (self.part, self.has_value) = (None, false),
            _ if GOES_ON.contains(&token) => self.has_value = false,
            // What follows a value is about the element.
            _ if self.has_value => {}
            _ => {
                self.has_value = true;
                let is_address = match self.part {
                    Some(part) => self.parts.get(part).copied().unwrap_or(false),
                    None => self.is_target,
                };
                return is_address && !is_address_text(token);
            }
        }
        false
    }

    fn is_name(&mut self, token: &str) -> bool {
        self.sends |= SENDERS.contains(&token);
        let is_place = self.parts.last() == Some(&true) && !self.joins;
        if self.has_value || !is_place || INSTEAD.contains(&token) {
            // What comes next belongs to something else, unless parts are still being joined.
            if !self.joins {
                self.compare(Vec::new());
            }
            return false;
        }
        self.has_value = true;
        !is_address_text(token)
    }
}

/// Whether a word is an address, or a number, with all that may be written to it: a prefix length,
/// a range, and without a space a port or what a map leads to.
fn is_address_text(token: &str) -> bool {
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let is_plain = |text: &str| {
        let text = text.split('/').next().unwrap_or(text);
        text.parse::<IpAddr>().is_ok() || is_number(text)
    };
    let is_range = |text: &str| text.split('-').all(is_plain);
    let is_sign = !token.contains(char::is_alphanumeric);
    let is_mac = token.contains(':')
        && token.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '-' | '/' | '.'));
    let is_leading = || token.rsplit_once(':').is_some_and(|(first, _)| is_range(first));
    is_sign && !token.starts_with('"') || is_range(token) || is_mac || is_leading()
}
