//! Replaces files atomically, and reads them.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// Length of the random suffix of a temporary file.
const SUFFIX_LENGTH: usize = 6;
/// The most bytes of the file's name in the name of its temporary file, which has to be shorter than 256 bytes.
const NAME_PART: usize = 200;

/// The most bytes that are read of a file: more than a Secret can hold.
const MAX_BYTES: u64 = 4 << 20;

/// The content of a file of certificates, of which at most 4 MiB are read.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut content)?;
    Ok(content)
}

/// Replaces a file, or creates it with permission bits `new_mode`; missing directories are created. A reader sees the old content or the new one, and
/// so does the next boot after a power failure (rename(2) and fsync(2)). An existing file keeps its permission bits, owner and group; a symbolic link
/// is replaced itself. Until the rename the new content is in a hidden file that only this process can read.
///
/// # Errors
/// When the directory cannot be created or written, or the owner cannot be kept. The old content then stays. When only the directory cannot be synced,
/// the new content is visible, but may be lost by a power failure.
pub fn replace(path: &Path, content: &[u8], new_mode: u32) -> io::Result<()> {
    let directory = parent(path);
    // tempfile's own message names the temporary file, which its reader never sees.
    let failed = |verb: &'static str| {
        move |error: io::Error| {
            let (kind, directory) = (error.kind(), directory.display());
            io::Error::new(kind, format!("cannot {verb} directory {directory}: {kind}"))
        }
    };
    fs::create_dir_all(directory).map_err(failed("create"))?;
    let stored = fs::symlink_metadata(path).ok().filter(Metadata::is_file);
    let mut builder = tempfile::Builder::new();
    let prefix = temporary_prefix(path);
    builder.prefix(&prefix).rand_bytes(SUFFIX_LENGTH);
    let mut file = builder.tempfile_in(directory).map_err(failed("create a file in"))?;
    file.write_all(content).map_err(failed("write to"))?;
    if let Some(stored) = &stored {
        keep_owner(file.as_file(), stored, path)?;
    }
    let mode = stored.map_or(new_mode, |stored| stored.permissions().mode());
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all().map_err(failed("write to"))?;
    file.persist(path)?;
    // Without it a power failure can undo the rename.
    File::open(directory)?.sync_all().map_err(failed("sync"))
}

/// Removes the temporary files that killed processes left next to a file. A process that is replacing the file at this moment fails, and the old
/// content stays.
///
/// # Errors
/// When the directory cannot be read, or one of them cannot be removed. It is no error if the directory does not exist.
pub fn remove_temporary_files(path: &Path) -> io::Result<usize> {
    let prefix = temporary_prefix(path);
    let entries = match fs::read_dir(parent(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let suffix = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        let is_temporary = suffix.is_some_and(|suffix| {
            suffix.len() == SUFFIX_LENGTH && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric())
        });
        if is_temporary && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What the names of a file's temporary files begin with. It ends with a character that their suffixes do not have.
fn temporary_prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or(OsStr::new("")).to_string_lossy();
    format!(".trustspan-{}.", &name[..name.floor_char_boundary(NAME_PART)])
}

fn keep_owner(file: &File, stored: &Metadata, path: &Path) -> io::Result<()> {
    let (uid, gid) = (stored.uid(), stored.gid());
    let new = file.metadata()?;
    if (new.uid(), new.gid()) == (uid, gid) {
        return Ok(());
    }
    fchown(file, Some(uid), Some(gid)).map_err(|error| {
        let (kind, path) = (error.kind(), path.display());
        io::Error::new(kind, format!("cannot keep owner {uid}:{gid} of {path}: {kind}. run as that user or as root"))
    })
}

#[cfg(test)]
mod tests {

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
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut seen, mut changes) = (b'a', 0);
                while changes < 20 {
                    let text = fs::read(&path).unwrap();
                    assert_eq!(text.len(), SIZE);
                    assert!(text.iter().all(|letter| *letter == text[0]), "torn");
                    changes += usize::from(text[0] != seen);
                    seen = text[0];
                }
            });
            for letter in (b'a'..=b'z').cycle() {
                if reader.is_finished() {
                    break;
                }
                replace(&path, &content(letter), 0o600).unwrap();
            }
        });
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

    /// Only root may give files away.
    #[test]
    fn the_owner_stays_or_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        if std::os::unix::fs::chown(&path, Some(12), Some(34)).is_err() {
            let error = keep_owner(&File::open(dir.path()).unwrap(), &fs::metadata("/proc/version").unwrap(), &path);
            assert!(error.unwrap_err().to_string().contains("cannot keep owner 0:0 of "));
            return;
        }
        fs::set_permissions(&path, Permissions::from_mode(0o4640)).unwrap();
        replace(&path, b"new", 0o600).unwrap();
        let stored = fs::metadata(&path).unwrap();
        assert_eq!((stored.uid(), stored.gid(), stored.permissions().mode() & 0o7777), (12, 34, 0o4640));
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn temporary_files_of_killed_processes_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        let stays =
            ["ca.crt", ".trustspan-ca.crt.abc", ".trustspan-ca.crt.abc-12", ".trustspan-ca.crt.old.Abc123", ".hidden"];
        for name in stays.iter().chain(&[".trustspan-ca.crt.Abc123", ".trustspan-ca.crt.xyz789"]) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(remove_temporary_files(&path).unwrap(), 2);
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        let mut expected = stays.map(std::ffi::OsString::from);
        expected.sort();
        assert_eq!(left, expected);
        assert_eq!(remove_temporary_files(&dir.path().join("missing/ca.crt")).unwrap(), 0);
        let long = dir.path().join("a".repeat(255));
        replace(&long, b"new", 0o600).unwrap();
        assert_eq!(remove_temporary_files(&long).unwrap(), 0);
    }
}
