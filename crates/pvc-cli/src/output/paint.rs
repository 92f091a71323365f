//! Colours.

/// The colours of the views, by their ANSI codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Red = 91,
    Green = 92,
    Yellow = 93,
    Blue = 94,
    Purple = 95,
    Cyan = 96,
}

/// Paints text, or leaves it alone where nobody would see the colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    on: bool,
}

impl Paint {
    pub const OFF: Paint = Paint { on: false };
    pub const ON: Paint = Paint { on: true };

    /// On if asked for, else on a terminal unless `NO_COLOR` or a dumb terminal says otherwise.
    pub fn choose(force: bool, terminal: bool) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: force || (terminal && !set("NO_COLOR") && !dumb) }
    }

    pub fn is_on(self) -> bool {
        self.on
    }

    pub fn colour(self, colour: Colour, text: impl AsRef<str>) -> String {
        self.code(colour as u8, text.as_ref())
    }

    pub fn bold(self, text: impl AsRef<str>) -> String {
        self.code(1, text.as_ref())
    }

    fn code(self, code: u8, text: &str) -> String {
        if self.on && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Health of a node, a plugin or a cluster whose figure may be unknown.
pub fn node_health(health: Option<i64>) -> Colour {
    match health {
        None => Colour::Blue,
        Some(..=50) => Colour::Red,
        Some(51..=90) => Colour::Yellow,
        Some(_) => Colour::Green,
    }
}

/// Health of a whole cluster; blue in maintenance, when nobody should be alarmed.
pub fn cluster_health(health: Option<i64>, maintenance: bool) -> Colour {
    match health {
        _ if maintenance => Colour::Blue,
        None => Colour::Blue,
        Some(91..) => Colour::Green,
        Some(51..=90) => Colour::Yellow,
        Some(_) => Colour::Red,
    }
}

pub fn daemon_state(state: &str) -> Colour {
    match state {
        "run" => Colour::Green,
        "stop" | "fenced" | "dead" => Colour::Red,
        "shutdown" | "init" => Colour::Yellow,
        _ => Colour::Blue,
    }
}

pub fn coordinator_state(state: &str) -> Colour {
    match state {
        "primary" => Colour::Green,
        "secondary" => Colour::Blue,
        _ => Colour::Cyan,
    }
}

pub fn domain_state(state: &str) -> Colour {
    if state == "ready" { Colour::Green } else { Colour::Blue }
}

pub fn vm_state(state: &str) -> Colour {
    match state {
        "start" => Colour::Green,
        "restart" | "shutdown" => Colour::Yellow,
        "stop" | "fail" => Colour::Red,
        "mirror" => Colour::Purple,
        _ => Colour::Blue,
    }
}

/// VM states in a count: what is neither running nor at rest deserves a look.
pub fn vm_state_summary(state: &str) -> Colour {
    match state {
        "start" => Colour::Green,
        "migrate" | "disable" | "provision" => Colour::Blue,
        "mirror" => Colour::Purple,
        "stop" | "fail" => Colour::Red,
        _ => Colour::Yellow,
    }
}

/// `run,ready` and its like.
pub fn node_summary(state: &str) -> Colour {
    match state {
        "run,ready" => Colour::Green,
        "run,flush" | "run,unflush" | "run,flushed" => Colour::Blue,
        _ if state.contains("dead") || state.contains("fenced") || state.contains("stop") => {
            Colour::Red
        }
        _ => Colour::Yellow,
    }
}

/// `up,in` and its like.
pub fn osd_summary(state: &str) -> Colour {
    match state {
        "up,in" => Colour::Green,
        "down,out" => Colour::Red,
        _ => Colour::Yellow,
    }
}

pub fn fault(delta: i64, acknowledged: bool) -> Colour {
    match delta {
        _ if acknowledged => Colour::Blue,
        50.. => Colour::Red,
        10..=49 => Colour::Yellow,
        _ => Colour::Green,
    }
}

pub fn flag(on: bool) -> Colour {
    if on { Colour::Green } else { Colour::Blue }
}
