//! Replaces files atomically.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Replaces a file, or creates it with permission bits `new_mode`; missing directories are created. A reader sees the old content or the new one, and
/// so does the next boot after a power failure (rename(2) and fsync(2)). An existing file keeps its permission bits; a symbolic link is replaced
/// itself. Until the rename the new content is in a hidden file that only its owner can read.
///
/// # Errors
/// When the directory cannot be created or written. The old content then stays. When only the directory cannot be synced, the new content is visible,
/// but may be lost by a power failure.
pub fn replace(path: &Path, content: &[u8], new_mode: u32) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // tempfile's own message names the temporary file, which its reader never sees.
    let failed = |verb: &'static str| {
        move |error: io::Error| {
            let (kind, directory) = (error.kind(), directory.display());
            io::Error::new(kind, format!("cannot {verb} directory {directory}: {kind}"))
        }
    };
    fs::create_dir_all(directory).map_err(failed("create"))?;
    let mode = match fs::symlink_metadata(path) {
        Ok(stored) if stored.is_file() => stored.permissions().mode(),
        _ => new_mode,
    };
    let mut file =
        tempfile::Builder::new().prefix(".trustspan-").tempfile_in(directory).map_err(failed("create a file in"))?;
    file.write_all(content)?;
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    // Without it a power failure can undo the rename.
    File::open(directory)?.sync_all().map_err(failed("sync"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_reader_never_sees_a_torn_empty_or_missing_file() {
        const SIZE: usize = 100_000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content = |letter: u8| vec![letter; SIZE];
        replace(&path, &content(b'a'), 0o600).unwrap();
        let reads = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut seen, mut changes) = (b'a', 0);
                while changes < 20 {
                    let text = fs::read(&path).unwrap();
                    assert_eq!(text.len(), SIZE);
                    assert!(text.iter().all(|letter| *letter == text[0]), "torn");
                    changes += usize::from(text[0] != seen);
                    seen = text[0];
                    reads.fetch_add(1, SeqCst);
                }
            });
            for letter in (b'a'..=b'z').cycle() {
                if reader.is_finished() {
                    break;
                }
                replace(&path, &content(letter), 0o600).unwrap();
            }
        });
        assert!(reads.load(SeqCst) > 20);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    /// Not even root can create a file in /proc.
    #[test]
    fn a_directory_that_cannot_be_written_is_an_error_and_the_old_content_stays() {
        let path = Path::new("/proc/version");
        let old = fs::read(path).unwrap();
        let error = replace(path, b"new", 0o600).unwrap_err();
        assert!(error.to_string().starts_with("cannot create a file in directory /proc: "), "{error}");
        assert_eq!(fs::read(path).unwrap(), old);

        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "old").unwrap();
        let error = replace(&dir.path().join("file/below"), b"new", 0o600).unwrap_err();
        assert!(error.to_string().starts_with("cannot create directory "), "{error}");
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"old");
    }

    #[test]
    fn a_failed_rename_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("taken")).unwrap();
        replace(&dir.path().join("taken"), b"new", 0o600).unwrap_err();
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["taken"]);
    }

    #[test]
    fn an_existing_file_keeps_its_mode_and_a_link_is_replaced_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("new/file"), dir.path().join("link"));
        replace(&path, b"1", 0o640).unwrap();
        assert_eq!(mode(&path), 0o640);
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        replace(&path, b"2", 0o600).unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o604, b"2".to_vec()));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, b"3", 0o600).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!((mode(&link), fs::read(&path).unwrap()), (0o600, b"2".to_vec()));
    }
}
