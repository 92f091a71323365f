//! Contract of every [`Files`], in a directory with nothing to lose.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pvc_ports::{FileAccess, FileInfo, FileKind, FileOwner, Files, FilesError};

/// Environment that the suite needs from whoever runs it.
pub struct FilesFixture {
    pub files: Arc<dyn Files>,
    /// An empty directory.
    pub directory: PathBuf,
    pub hostile: Box<dyn HostilePaths>,
    /// A user and a group that exist, and that files may be given to.
    pub owner: FileOwner,
}

/// Files that other programs can leave at a path. None of them is there before.
pub trait HostilePaths: Send + Sync {
    /// Makes a symbolic link at `path` that leads to `to`.
    fn link(&self, path: &Path, to: &Path);
    /// Makes a FIFO that nobody has open.
    fn fifo(&self, path: &Path);
    /// Makes a file of so many zeros, which takes no space.
    fn sparse(&self, path: &Path, length_bytes: u64);
}

/// More than any test of small files needs.
const PLENTY: u64 = 1 << 20;

/// Runs the whole suite.
///
/// # Panics
/// When the files break the contract.
pub async fn files_contract(fixture: FilesFixture) {
    fixture.a_file_is_what_it_was_last_replaced_by().await;
    fixture.who_reads_while_a_file_is_replaced_reads_one_of_both().await;
    fixture.a_file_is_appended_to_up_to_its_bound().await;
    fixture.only_the_end_of_a_file_is_read_or_kept().await;
    fixture.a_file_beyond_the_bound_is_refused_before_it_is_read().await;
    fixture.what_is_no_file_is_neither_read_nor_written().await;
    fixture.a_link_at_the_end_of_a_path_is_not_followed_and_one_above_is().await;
    fixture.a_path_is_followed_to_where_its_links_lead().await;
    fixture.a_directory_is_listed_by_name_and_within_its_bound().await;
    fixture.what_is_removed_is_gone_and_a_full_directory_stays().await;
    fixture.what_does_not_exist_is_missing().await;
    fixture.odd_paths_and_unknown_owners_are_refused().await;
    fixture.there_is_space_to_be_reported().await;
}

impl FilesFixture {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    async fn replace(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.path(name);
        ok(self.files.replace(&path, contents, &FileAccess::PUBLIC).await);
        path
    }

    async fn read(&self, path: &Path) -> Vec<u8> {
        ok(self.files.read(path, PLENTY).await)
    }

    async fn info(&self, path: &Path) -> FileInfo {
        ok(self.files.look(path).await).expect("it is there")
    }

    async fn a_file_is_what_it_was_last_replaced_by(&self) {
        let path = self.path("replaced");
        assert_eq!(ok(self.files.look(&path).await), None);
        let owned = FileAccess { mode: 0o640, owner: Some(self.owner.clone()) };
        let accesses = [FileAccess::PUBLIC, FileAccess::PRIVATE, owned];
        let mut before = None;
        for (access, contents) in accesses.iter().zip([&b"one\n"[..], b"", b"two\0\xff"]) {
            ok(self.files.replace(&path, contents, access).await);
            assert_eq!(self.read(&path).await, contents);
            let info = self.info(&path).await;
            assert_eq!((info.kind, info.mode), (FileKind::File, access.mode));
            assert_eq!(info.length_bytes, contents.len() as u64);
            assert_ne!(before.replace(info.clone()), Some(info.clone()), "it is another one now");
            assert_eq!(self.info(&path).await, info, "nothing happens to it by itself");
        }
        assert_eq!(self.names().await, ["replaced"], "nothing else is left");
        ok(self.files.remove(&path).await);
    }

    async fn who_reads_while_a_file_is_replaced_reads_one_of_both(&self) {
        let contents = [vec![b'a'; 100_000], vec![b'b'; 50_000]];
        let path = self.replace("torn", &contents[0]).await;
        let (files, written) = (self.files.clone(), path.clone());
        let both = contents.clone();
        let writer = tokio::spawn(async move {
            for turn in 0..40 {
                ok(files.replace(&written, &both[turn % 2], &FileAccess::PUBLIC).await);
                tokio::task::yield_now().await;
            }
        });
        while !writer.is_finished() {
            let read = self.read(&path).await;
            assert!(contents.contains(&read), "{} bytes of both", read.len());
            tokio::task::yield_now().await;
        }
        writer.await.expect("the writer succeeds");
        ok(self.files.remove(&path).await);
    }

    async fn a_file_is_appended_to_up_to_its_bound(&self) {
        let path = self.path("appended");
        let append =
            async |bytes: &[u8]| self.files.append(&path, bytes, &FileAccess::PRIVATE, 8).await;
        let error = append(b"too long.").await.expect_err("it would be too large from the start");
        assert!(matches!(error, FilesError::TooLarge { most_bytes: 8, .. }), "{error}");
        assert_eq!(ok(self.files.look(&path).await), None, "and is not made");
        ok(append(b"one\n").await);
        assert_eq!(self.info(&path).await.mode, 0o600);
        ok(append(b"two\n").await);
        let error = append(b"x").await.expect_err("there is no room for a ninth");
        assert!(matches!(error, FilesError::TooLarge { .. }), "{error}");
        assert_eq!(self.read(&path).await, b"one\ntwo\n");
        ok(self.files.remove(&path).await);
    }

    async fn only_the_end_of_a_file_is_read_or_kept(&self) {
        let path = self.replace("end", b"0123456789").await;
        let (info, end) = ok(self.files.read_end(&path, 4).await);
        assert_eq!((info, &end[..]), (self.info(&path).await, &b"6789"[..]));
        assert_eq!(ok(self.files.read_end(&path, 100).await).1, b"0123456789");
        assert_eq!(ok(self.files.read_end(&path, 0).await).1, b"");
        let before = self.info(&path).await;
        ok(self.files.keep_end(&path, 10).await);
        assert_eq!(self.info(&path).await, before, "it is no longer than that");
        ok(self.files.keep_end(&path, 4).await);
        let kept = self.info(&path).await;
        assert_eq!((kept.inode, kept.length_bytes), (before.inode, 4), "it is the same file");
        ok(self.files.append(&path, b"more", &FileAccess::PUBLIC, PLENTY).await);
        assert_eq!(self.read(&path).await, b"6789more");
        ok(self.files.remove(&path).await);
    }

    async fn a_file_beyond_the_bound_is_refused_before_it_is_read(&self) {
        let path = self.path("huge");
        // Whoever read it whole would need that much memory.
        self.hostile.sparse(&path, 1 << 40);
        let error = self.files.read(&path, PLENTY).await.expect_err("it is too large");
        let named = |error: &FilesError| match error {
            FilesError::TooLarge { path: named, most_bytes } => {
                (named, *most_bytes) == (&path, PLENTY)
            }
            _ => false,
        };
        assert!(named(&error), "{error}");
        assert_eq!(ok(self.files.read_end(&path, 3).await).1, [0; 3]);
        ok(self.files.remove(&path).await);
        let path = self.replace("exact", b"1234").await;
        assert_eq!(ok(self.files.read(&path, 4).await), b"1234");
        assert!(self.files.read(&path, 3).await.is_err(), "one byte less is too little");
        ok(self.files.remove(&path).await);
    }

    async fn what_is_no_file_is_neither_read_nor_written(&self) {
        let (fifo, directory) = (self.path("fifo"), self.path("directory"));
        self.hostile.fifo(&fifo);
        ok(self.files.create_directory(&directory, &FileAccess::PUBLIC_DIRECTORY).await);
        for (path, kind) in [(&fifo, FileKind::Special), (&directory, FileKind::Directory)] {
            self.is_no_file(path, kind).await;
            assert_eq!(self.info(path).await.kind, kind);
            ok(self.files.remove(path).await);
        }
    }

    async fn is_no_file(&self, path: &Path, kind: FileKind) {
        let public = &FileAccess::PUBLIC;
        let refused = [
            self.files.read(path, PLENTY).await.err(),
            self.files.read_end(path, PLENTY).await.err(),
            self.files.replace(path, b"x", public).await.err(),
            self.files.append(path, b"x", public, PLENTY).await.err(),
            self.files.keep_end(path, 0).await.err(),
        ];
        for error in refused {
            let error = error.expect("it is no file");
            let is_named =
                matches!(&error, FilesError::NotAFile { kind: named, .. } if *named == kind);
            assert!(is_named, "{error}");
        }
    }

    async fn a_link_at_the_end_of_a_path_is_not_followed_and_one_above_is(&self) {
        let secret = self.replace("secret", b"secret").await;
        let link = self.path("link");
        self.hostile.link(&link, &secret);
        self.is_no_file(&link, FileKind::SymbolicLink).await;
        assert_eq!(self.info(&link).await.kind, FileKind::SymbolicLink);
        ok(self.files.remove(&link).await);
        assert_eq!(self.read(&secret).await, b"secret", "only the link was removed");
        let above = self.path("above");
        self.hostile.link(&above, &self.directory);
        assert_eq!(self.read(&above.join("secret")).await, b"secret");
        let error = self.files.list(&above, 10).await.expect_err("the path ends in it");
        assert!(matches!(error, FilesError::NotADirectory { .. }), "{error}");
        // A slash at the end does not make it another path.
        let slash = PathBuf::from(format!("{}/", above.display()));
        assert_eq!(self.info(&slash).await.kind, FileKind::SymbolicLink);
        ok(self.files.remove(&above).await);
        ok(self.files.remove(&secret).await);
    }

    async fn a_path_is_followed_to_where_its_links_lead(&self) {
        let file = self.replace("followed", b"followed").await;
        let real = ok(self.files.follow(&file).await);
        assert_eq!(self.read(&real).await, b"followed");
        let (link, relative) = (self.path("link"), self.path("relative"));
        let above = self.path("above");
        self.hostile.link(&link, &file);
        self.hostile.link(&relative, Path::new("link"));
        self.hostile.link(&above, &self.directory);
        let below = above.join("relative");
        for path in [&file, &link, &relative, &below] {
            assert_eq!(ok(self.files.follow(path).await), real, "{}", path.display());
        }
        ok(self.files.remove(&file).await);
        for path in [&file, &link, &relative] {
            let error = self.files.follow(path).await.expect_err("it leads nowhere");
            let is_named = matches!(&error, FilesError::Missing { path: named } if named == path);
            assert!(is_named, "{error}");
        }
        self.hostile.link(&file, &relative);
        let error = self.files.follow(&file).await.expect_err("it leads to itself");
        assert!(matches!(error, FilesError::Failed { .. }), "{error}");
        for path in [&file, &link, &relative, &above] {
            ok(self.files.remove(path).await);
        }
    }

    async fn a_directory_is_listed_by_name_and_within_its_bound(&self) {
        let deep = self.path("one/two/three");
        let private = FileAccess { mode: 0o700, owner: None };
        for _ in 0..2 {
            ok(self.files.create_directory(&deep, &private).await);
            assert_eq!(self.info(&deep).await.mode, 0o700);
        }
        assert_eq!(self.info(&self.path("one/two")).await.mode, 0o755);
        ok(self.files.create_directory(&deep, &FileAccess::PUBLIC_DIRECTORY).await);
        assert_eq!(self.info(&deep).await.mode, 0o700, "what is there stays as it is");
        for name in ["c", "a", "b"] {
            self.replace(&format!("one/two/{name}"), b"").await;
        }
        let two = self.path("one/two");
        let entries = ok(self.files.list(&two, 4).await);
        let seen: Vec<_> =
            entries.iter().map(|entry| (entry.name.to_str().expect("ours"), entry.kind)).collect();
        let file = |name| (name, FileKind::File);
        assert_eq!(seen, [file("a"), file("b"), file("c"), ("three", FileKind::Directory)]);
        let error = self.files.list(&two, 3).await.expect_err("there are four");
        assert!(matches!(error, FilesError::TooMany { most: 3, .. }), "{error}");
        let file = self.path("one/two/a");
        let error = self.files.list(&file, 3).await.expect_err("it is a file");
        assert!(matches!(error, FilesError::NotADirectory { .. }), "{error}");
        let error = self.files.create_directory(&file, &private).await.expect_err("it is a file");
        assert!(matches!(error, FilesError::NotADirectory { .. }), "{error}");
    }

    async fn what_is_removed_is_gone_and_a_full_directory_stays(&self) {
        let two = self.path("one/two");
        let error = self.files.remove(&two).await.expect_err("there is something in it");
        assert!(matches!(&error, FilesError::NotEmpty { path } if *path == two), "{error}");
        for name in ["one/two/a", "one/two/b", "one/two/c", "one/two/three", "one/two", "one"] {
            for _ in 0..2 {
                ok(self.files.remove(&self.path(name)).await);
                assert_eq!(ok(self.files.look(&self.path(name)).await), None);
            }
        }
        assert!(self.names().await.is_empty());
    }

    async fn what_does_not_exist_is_missing(&self) {
        let (absent, below) = (self.path("absent"), self.path("absent/below"));
        let public = &FileAccess::PUBLIC;
        let refused = [
            self.files.read(&absent, PLENTY).await.err(),
            self.files.read_end(&absent, PLENTY).await.err(),
            self.files.keep_end(&absent, 1).await.err(),
            self.files.list(&absent, 1).await.err(),
            self.files.space(&absent).await.err(),
            self.files.replace(&below, b"x", public).await.err(),
            self.files.append(&below, b"x", public, PLENTY).await.err(),
        ];
        for error in refused {
            let error = error.expect("nothing is there");
            assert!(matches!(error, FilesError::Missing { .. }), "{error}");
        }
        assert!(self.names().await.is_empty(), "and nothing was made");
    }

    async fn odd_paths_and_unknown_owners_are_refused(&self) {
        let above = self.directory.join("../elsewhere");
        for path in [Path::new("relative"), Path::new("/"), Path::new(""), &above] {
            let error =
                self.files.replace(path, b"x", &FileAccess::PUBLIC).await.expect_err("no name");
            assert!(matches!(error, FilesError::BadPath { .. }), "{error}");
            assert!(self.files.look(path).await.is_err(), "{}", path.display());
        }
        let owner = FileOwner { user: "pvc-contract".to_owned(), group: "nobody-has".to_owned() };
        let access = FileAccess { mode: 0o600, owner: Some(owner) };
        let error =
            self.files.replace(&self.path("owned"), b"x", &access).await.expect_err("whose is it?");
        assert!(matches!(error, FilesError::NoOwner { .. }), "{error}");
        assert!(self.names().await.is_empty(), "and nothing was made");
    }

    async fn there_is_space_to_be_reported(&self) {
        let space = ok(self.files.space(&self.directory).await);
        assert!(space.available_bytes > 0, "{space:?}");
        assert!(space.total_bytes >= space.available_bytes, "{space:?}");
    }

    async fn names(&self) -> Vec<String> {
        let entries = ok(self.files.list(&self.directory, 100).await);
        entries.into_iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect()
    }
}

fn ok<T, E: Debug>(done: Result<T, E>) -> T {
    done.expect("the contract says that this succeeds")
}
