//! Views against the files of `tests/golden`. `PVC_BLESS=1 cargo nextest run -p pvc-cli` writes
//! them anew; read the difference before it is committed.

/// Fails unless `text` is what the file holds.
#[track_caller]
pub fn check(file: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("PVC_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(recorded == text, "{file} was:\n{recorded}\nand is now:\n{text}");
}
