use std::fs;

/// Names this process of this machine, in words that no other process says: the ids are those that
/// `hostnamectl` shows. Of servers that were cloned, at least the boots differ.
pub fn this_process() -> String {
    let pid = std::process::id();
    let host = read("/proc/sys/kernel/hostname").unwrap_or_else(|| "this machine".to_owned());
    let ids: Vec<String> =
        [("machine id", "/etc/machine-id"), ("boot id", "/proc/sys/kernel/random/boot_id")]
            .into_iter()
            .filter_map(|(name, file)| Some(format!("{name} {}", read(file)?.replace('-', ""))))
            .collect();
    let ids = if ids.is_empty() { String::new() } else { format!(" ({})", ids.join(", ")) };
    format!("process {pid} of {host}{ids}")
}

fn read(file: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_which_it_is_of_which_boot_of_which_machine() {
        let said = this_process();
        let boot =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().replace('-', "");
        assert!(said.starts_with(&format!("process {} of ", std::process::id())), "{said}");
        assert!(said.ends_with(&format!("boot id {boot})")), "{said}");
        assert_eq!(said, this_process());
    }
}
