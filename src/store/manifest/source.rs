//! Paths to sources: a directory becomes its manifests, a pipe becomes a file that can be read twice.

use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::{Chunk, Chunks, ManifestError};

/// A file, or a spooled pipe. It can be read any number of times, one reader at a time.
#[derive(Debug)]
pub struct Source {
    name: Arc<str>,
    origin: Origin,
    /// What was read of it, all of it.
    kept: OnceCell<Vec<Rc<Chunk>>>,
    room: Room,
}

/// Bytes of text that are still kept of all sources that are opened together, for whoever reads them again: at first as much as etcd
/// takes for an object (`--max-request-bytes`). What was parsed is kept with them, and takes some thirty times as much.
#[derive(Clone, Debug)]
struct Room(Rc<Cell<usize>>);

impl Default for Room {
    fn default() -> Self {
        Self(Rc::new(Cell::new(3 << 19)))
    }
}

impl Room {
    fn take(&self, bytes: usize) -> bool {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.unwrap_or(self.0.get()));
        left.is_some()
    }

    fn give_back(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
    }
}

#[derive(Debug)]
enum Origin {
    File(PathBuf),
    /// An unlinked temporary file: it ends with the process, and nobody else can open it. A pipe may carry private keys.
    Spool(File),
}

/// The files that are taken of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// `*.yaml`, `*.yml` and `*.json`.
    #[default]
    Manifests,
    /// These, and `*.pem`, `*.crt` and `*.cer`.
    ManifestsAndPem,
}

/// Resolves paths, as [`open_each`] does, to manifests.
///
/// # Errors
/// When one does not exist or cannot be read.
pub fn open(paths: &[PathBuf]) -> Result<Vec<Source>, ManifestError> {
    open_each(paths, Files::Manifests).into_iter().collect()
}

/// Resolves paths: `-` is stdin; a directory means its `files` and those of the directories below it, in the order of
/// their names. Hidden entries are passed over (a mounted ConfigMap holds each file a second time below `..data`). What does not exist
/// or cannot be read is an error in its place.
pub fn open_each(paths: &[PathBuf], files: Files) -> Vec<Result<Source, ManifestError>> {
    let mut opening = Opening { files, ..Opening::default() };
    for path in paths {
        match path.as_os_str() == "-" {
            true => opening.push(spool(io::stdin().lock()), "stdin"),
            false => opening.enter(path).unwrap_or_else(|error| opening.sources.push(Err(error))),
        }
    }
    opening.sources
}

/// Sources that are opened together.
#[derive(Default)]
struct Opening {
    files: Files,
    sources: Vec<Result<Source, ManifestError>>,
    room: Room,
}

impl Opening {
    fn push(&mut self, origin: io::Result<Origin>, name: &str) {
        self.sources.push(match origin {
            Ok(origin) => Ok(Source { name: name.into(), origin, kept: OnceCell::new(), room: self.room.clone() }),
            Err(cause) => Err(ManifestError::Read { source_name: name.to_owned(), cause }),
        });
    }

    fn push_file(&mut self, path: &Path) {
        self.push(Ok(Origin::File(path.to_owned())), &path.display().to_string());
    }

    fn enter(&mut self, path: &Path) -> Result<(), ManifestError> {
        let failed = unread(path);
        let metadata = fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            return self.walk(path);
        }
        let file = File::open(path).map_err(failed)?;
        match metadata.is_file() {
            true => self.push_file(path),
            false => self.push(spool(file), &path.display().to_string()),
        }
        Ok(())
    }

    fn walk(&mut self, directory: &Path) -> Result<(), ManifestError> {
        let failed = unread(directory);
        let mut entries = fs::read_dir(directory).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // A linked file is read, a linked directory is not entered: links may form a ring.
            if entry.file_type().map_err(failed)?.is_dir() {
                self.walk(&entry.path()).unwrap_or_else(|error| self.sources.push(Err(error)));
            } else if self.files.take(&entry.path()) && entry.path().is_file() {
                self.push_file(&entry.path());
            }
        }
        Ok(())
    }
}

fn unread(path: &Path) -> impl Fn(io::Error) -> ManifestError + Copy {
    move |cause| ManifestError::Read { source_name: path.display().to_string(), cause }
}

fn spool(mut pipe: impl io::Read) -> io::Result<Origin> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut pipe, &mut file)?;
    Ok(Origin::Spool(file))
}

impl Files {
    fn take(self, path: &Path) -> bool {
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        matches!(extension, "yaml" | "yml" | "json")
            || (self == Self::ManifestsAndPem && PEM_EXTENSIONS.contains(&extension))
    }
}

const PEM_EXTENSIONS: [&str; 3] = ["pem", "crt", "cer"];
/// A text that begins with this is PEM (RFC 7468 section 2), and no manifest.
const PEM_BEGIN: &[u8] = b"-----BEGIN ";

impl Source {
    /// The path as given, or `stdin`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a PEM file rather than a manifest: by its extension, or by how it begins.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn is_pem(&self) -> Result<bool, ManifestError> {
        if Path::new(self.name()).extension().and_then(OsStr::to_str).is_some_and(|e| PEM_EXTENSIONS.contains(&e)) {
            return Ok(true);
        }
        let mut begin = Vec::new();
        self.file()?.take(PEM_BEGIN.len() as u64).read_to_end(&mut begin).map_err(|cause| self.unread(cause))?;
        Ok(begin == PEM_BEGIN)
    }

    /// All of its bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn bytes(&self) -> Result<Zeroizing<Vec<u8>>, ManifestError> {
        let mut bytes = Zeroizing::new(Vec::new());
        self.file()?.read_to_end(&mut bytes).map_err(|cause| self.unread(cause))?;
        Ok(bytes)
    }

    /// Reads from the start; what is small is read, cut and parsed once only. A second reader of a spooled pipe moves the first one's
    /// position: use one at a time.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn chunks(&self) -> Result<impl Iterator<Item = Result<Rc<Chunk>, ManifestError>>, ManifestError> {
        let kept = self.kept.get();
        let reading = match kept {
            Some(_) => None,
            None => Some(Reading { source: self, chunks: self.read()?, kept: Some(Vec::new()) }),
        };
        Ok(kept.into_iter().flatten().map(|chunk| Ok(Rc::clone(chunk))).chain(reading.into_iter().flatten()))
    }

    fn read(&self) -> Result<Chunks<BufReader<File>>, ManifestError> {
        Ok(Chunks::new(self.name.clone(), BufReader::new(self.file()?)))
    }

    fn file(&self) -> Result<File, ManifestError> {
        let opened = match &self.origin {
            Origin::File(path) => File::open(path),
            Origin::Spool(file) => file.try_clone().and_then(|mut file| file.rewind().map(|()| file)),
        };
        opened.map_err(|cause| self.unread(cause))
    }

    fn unread(&self, cause: io::Error) -> ManifestError {
        ManifestError::Read { source_name: self.name.to_string(), cause }
    }
}

/// Reads a source, and leaves with it what was read if that was all, without an error, and there was room for it.
struct Reading<'s> {
    source: &'s Source,
    chunks: Chunks<BufReader<File>>,
    kept: Option<Vec<Rc<Chunk>>>,
}

impl Reading<'_> {
    fn forget(&mut self) {
        let bytes = self.kept.take().iter().flatten().map(|chunk| chunk.text.len()).sum();
        self.source.room.give_back(bytes);
    }
}

impl Iterator for Reading<'_> {
    type Item = Result<Rc<Chunk>, ManifestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(next) = self.chunks.next() else {
            // Of two readers at a time the first has it.
            self.kept = self.kept.take().and_then(|kept| self.source.kept.set(kept).err());
            self.forget();
            return None;
        };
        let next = next.map(Rc::new);
        match (&mut self.kept, &next) {
            (Some(kept), Ok(chunk)) if self.source.room.take(chunk.text.len()) => kept.push(Rc::clone(chunk)),
            _ => self.forget(),
        }
        Some(next)
    }
}

impl Drop for Reading<'_> {
    /// Whoever leaves in the middle keeps nothing.
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_its_manifests_in_order() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        fs::create_dir_all(root.path().join("b/..data"))?;
        for name in ["b/z.yml", "b/..data/z.yml", "c.json", "a.yaml", "README.md", ".hidden.yaml"] {
            fs::write(root.path().join(name), "a: 1\n")?;
        }
        let names: Vec<_> = open(&[root.path().to_owned()])
            .expect("a readable directory")
            .iter()
            .map(|s| s.name().rsplit('/').next().map(str::to_owned))
            .collect();
        assert_eq!(names, [Some("a.yaml".to_owned()), Some("z.yml".to_owned()), Some("c.json".to_owned())]);
        Ok(())
    }

    #[test]
    fn pem_files_are_taken_where_they_are_asked_for() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        for name in ["a.yaml", "ca.crt", "ca.pem", "key.txt"] {
            fs::write(root.path().join(name), "-----BEGIN CERTIFICATE-----")?;
        }
        let taken = |files| open_each(&[root.path().to_owned()], files).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!([Files::Manifests, Files::ManifestsAndPem].map(|files| taken(files).len()), [1, 3]);
        let mut opening = Opening::default();
        opening.push(spool(&b"-----BEGIN CERTIFICATE-----"[..]), "stdin");
        opening.push(spool(&b"--- # a manifest"[..]), "stdin");
        let are_pem: Vec<_> = opening.sources.iter().flatten().map(|source| source.is_pem().ok()).collect();
        assert_eq!(are_pem, [Some(true), Some(false)]);
        Ok(())
    }

    #[test]
    fn a_spool_is_read_twice() {
        let mut opening = Opening::default();
        opening.push(spool(&b"a: 1\n---\nb: 2\n"[..]), "stdin");
        let [Ok(source)] = &opening.sources[..] else { panic!("a spool") };
        for _ in 0..2 {
            assert_eq!(source.chunks().expect("a reader").count(), 2);
        }
    }

    fn are_kept(source: &Source) -> bool {
        let read = || source.chunks().expect("a reader").flatten().collect::<Vec<_>>();
        std::iter::zip(read(), read()).all(|(one, other)| Rc::ptr_eq(&one, &other))
    }

    #[test]
    fn what_is_small_is_read_once() {
        let mut opening = Opening::default();
        let room = opening.room.0.get();
        opening.push(spool(&b"a: 1\n---\nb: 2\n"[..]), "small");
        opening.push(spool("#\n".repeat(room / 2).as_bytes()), "large");
        opening.push(spool(&b"a: \xff\n---\nb: 2\n"[..]), "broken");
        opening.push(spool(&b"a: 1\n"[..]), "another");
        let sources: Vec<_> = opening.sources.into_iter().flatten().collect();
        assert_eq!(sources.iter().map(are_kept).collect::<Vec<_>>(), [true, false, false, true]);
        assert_eq!(room - opening.room.0.get(), 19, "what is not kept takes no room");
        drop(sources[1].chunks().expect("a reader").next());
        assert_eq!(room - opening.room.0.get(), 19, "nor does what nobody reads to its end");
    }

    #[test]
    fn a_missing_path_is_named() {
        let error = open(&[PathBuf::from("no/such.yaml")]).expect_err("no such file");
        assert!(error.to_string().starts_with("no/such.yaml: cannot be read: "), "{error}");
    }
}
