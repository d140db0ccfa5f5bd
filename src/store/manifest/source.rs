//! Resolves paths to sources: a directory to its manifests, a pipe to a file that can be read twice.

use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use zeroize::Zeroizing;

use super::{Chunk, Chunks, ManifestError};

/// A file, or a spooled pipe. It can be read several times, by one reader at a time.
#[derive(Debug)]
pub struct Source {
    name: Arc<str>,
    origin: Origin,
    /// All of its chunks, if they were cached.
    cached: OnceCell<Vec<Rc<Chunk>>>,
    budget: CacheBudget,
}

/// Bytes of text that can still be cached for the sources that are opened together. The initial budget is etcd's limit of an object
/// (`--max-request-bytes`). The parsed values are cached with the text, and take about thirty times as much.
#[derive(Clone, Debug)]
struct CacheBudget(Rc<Cell<usize>>);

impl Default for CacheBudget {
    fn default() -> Self {
        Self(Rc::new(Cell::new(3 << 19)))
    }
}

impl CacheBudget {
    fn take(&self, bytes: usize) -> bool {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.unwrap_or(self.0.get()));
        left.is_some()
    }

    fn release(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
    }
}

#[derive(Debug)]
enum Origin {
    File(PathBuf),
    /// An unlinked temporary file, which no other process can open and which ends with this one: a pipe may contain private keys.
    Spool(File),
}

/// The files of a directory that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// `*.yaml`, `*.yml` and `*.json`.
    #[default]
    Manifests,
    /// Manifests, and `*.pem`, `*.crt` and `*.cer`.
    ManifestsAndPem,
}

/// Resolves paths to manifests, as [`open_each`] does.
///
/// # Errors
/// When one does not exist or cannot be read.
pub fn open(paths: &[PathBuf]) -> Result<Vec<Source>, ManifestError> {
    open_each(paths, Files::Manifests).into_iter().collect()
}

/// Resolves paths. `-` is stdin. A directory is its `files` and those of its subdirectories, sorted by name; hidden entries are
/// skipped (a mounted ConfigMap contains each file a second time below `..data`). A path that does not exist or cannot be read is an error
/// at its position.
pub fn open_each(paths: &[PathBuf], files: Files) -> Vec<Result<Source, ManifestError>> {
    let mut set = SourceSet { files, ..SourceSet::default() };
    for path in paths {
        match path.as_os_str() == "-" {
            true => set.push(spool(io::stdin().lock(), MAX_SPOOLED), "stdin"),
            false => set.enter(path).unwrap_or_else(|error| set.sources.push(Err(error))),
        }
    }
    set.sources
}

/// All bytes of a file, of a pipe, or of stdin (`-`).
///
/// # Errors
/// When it does not exist, is a directory, or cannot be read.
pub fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, ManifestError> {
    if path.is_dir() {
        return Err(unread(path)(io::ErrorKind::IsADirectory.into()));
    }
    let sources = open(&[path.to_owned()])?;
    sources.first().map_or_else(|| Ok(Zeroizing::default()), Source::bytes)
}

/// Sources that are opened together.
#[derive(Default)]
struct SourceSet {
    files: Files,
    sources: Vec<Result<Source, ManifestError>>,
    budget: CacheBudget,
}

impl SourceSet {
    fn push(&mut self, origin: io::Result<Origin>, name: &str) {
        self.sources.push(match origin {
            Ok(origin) => {
                Ok(Source { name: name.into(), origin, cached: OnceCell::new(), budget: self.budget.clone() })
            }
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
        if metadata.is_file() {
            File::open(path).map_err(failed)?;
            self.push_file(path);
        } else {
            let file = open_pipe(path, WRITER_TIMEOUT).map_err(failed)?;
            self.push(spool(file, MAX_SPOOLED), &path.display().to_string());
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
            // Linked files are read, but linked directories are not, since links can form a loop.
            if entry.file_type().map_err(failed)?.is_dir() {
                self.walk(&entry.path()).unwrap_or_else(|error| self.sources.push(Err(error)));
            } else if self.files.include(&entry.path()) && entry.path().is_file() {
                self.push_file(&entry.path());
            }
        }
        Ok(())
    }
}

fn unread(path: &Path) -> impl Fn(io::Error) -> ManifestError + Copy {
    move |cause| ManifestError::Read { source_name: path.display().to_string(), cause }
}

/// The most bytes that are read from a pipe or a device. A device such as /dev/zero has no end.
const MAX_SPOOLED: u64 = 1 << 30;
/// How long a named pipe may have no writer.
const WRITER_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens what is neither a file nor a directory. The open of a named pipe blocks until another process opens it to write (fifo(7)).
fn open_pipe(path: &Path, timeout: Duration) -> io::Result<File> {
    let (sender, opened) = mpsc::channel();
    let path = path.to_owned();
    thread::spawn(move || sender.send(File::open(path)));
    let no_writer = || format!("no process wrote to this pipe within {} s", timeout.as_secs());
    opened.recv_timeout(timeout).unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, no_writer())))
}

fn spool(pipe: impl io::Read, limit: u64) -> io::Result<Origin> {
    let mut file = tempfile::tempfile()?;
    if io::copy(&mut pipe.take(limit + 1), &mut file)? > limit {
        let found = format!("more than {} MiB; expected manifests", limit >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, found));
    }
    Ok(Origin::Spool(file))
}

impl Files {
    fn include(self, path: &Path) -> bool {
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        matches!(extension, "yaml" | "yml" | "json")
            || (self == Self::ManifestsAndPem && PEM_EXTENSIONS.contains(&extension))
    }
}

const PEM_EXTENSIONS: [&str; 3] = ["pem", "crt", "cer"];
/// A text with this prefix is PEM (RFC 7468 section 2) and not a manifest.
const PEM_BEGIN: &[u8] = b"-----BEGIN ";

impl Source {
    /// The path as given, or `stdin`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a PEM file and not a manifest, by its extension or its first bytes.
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

    /// All bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn bytes(&self) -> Result<Zeroizing<Vec<u8>>, ManifestError> {
        let mut bytes = Zeroizing::new(Vec::new());
        self.file()?.read_to_end(&mut bytes).map_err(|cause| self.unread(cause))?;
        Ok(bytes)
    }

    /// Reads from the start. Small sources are read and parsed only once. A second reader of a spooled pipe moves the position of the
    /// first: use one at a time.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn chunks(&self) -> Result<impl Iterator<Item = Result<Rc<Chunk>, ManifestError>>, ManifestError> {
        let cached = self.cached.get();
        let reader = match cached {
            Some(_) => None,
            None => Some(CachingReader { source: self, chunks: self.read()?, cache: Some(Vec::new()) }),
        };
        Ok(cached.into_iter().flatten().map(|chunk| Ok(Rc::clone(chunk))).chain(reader.into_iter().flatten()))
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

/// Reads a source, and caches its chunks if all are read without an error and fit into the budget.
struct CachingReader<'s> {
    source: &'s Source,
    chunks: Chunks<BufReader<File>>,
    cache: Option<Vec<Rc<Chunk>>>,
}

impl CachingReader<'_> {
    fn discard(&mut self) {
        let bytes = self.cache.take().iter().flatten().map(|chunk| chunk.text.len()).sum();
        self.source.budget.release(bytes);
    }
}

impl Iterator for CachingReader<'_> {
    type Item = Result<Rc<Chunk>, ManifestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(next) = self.chunks.next() else {
            // If two readers run at the same time, the one that finishes first fills the cache.
            self.cache = self.cache.take().and_then(|cache| self.source.cached.set(cache).err());
            self.discard();
            return None;
        };
        let next = next.map(Rc::new);
        match (&mut self.cache, &next) {
            (Some(cache), Ok(chunk)) if self.source.budget.take(chunk.text.len()) => cache.push(Rc::clone(chunk)),
            _ => self.discard(),
        }
        Some(next)
    }
}

impl Drop for CachingReader<'_> {
    /// A source that was not read to its end is not cached.
    fn drop(&mut self) {
        self.discard();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_resolves_to_its_manifests_in_order() -> io::Result<()> {
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
    fn pem_files_are_read_if_requested() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        for name in ["a.yaml", "ca.crt", "ca.pem", "key.txt"] {
            fs::write(root.path().join(name), "-----BEGIN CERTIFICATE-----")?;
        }
        let opened = |files| open_each(&[root.path().to_owned()], files).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!([Files::Manifests, Files::ManifestsAndPem].map(|files| opened(files).len()), [1, 3]);
        let mut set = SourceSet::default();
        set.push(spool(&b"-----BEGIN CERTIFICATE-----"[..], MAX_SPOOLED), "stdin");
        set.push(spool(&b"--- # a manifest"[..], MAX_SPOOLED), "stdin");
        let are_pem: Vec<_> = set.sources.iter().flatten().map(|source| source.is_pem().ok()).collect();
        assert_eq!(are_pem, [Some(true), Some(false)]);
        Ok(())
    }

    #[test]
    fn a_pipe_has_a_limit() {
        assert!(spool(io::repeat(b'#').take(9), 9).is_ok());
        let error = spool(io::repeat(b'#'), 3 << 20).expect_err("it has no end");
        assert_eq!(error.to_string(), "more than 3 MiB; expected manifests");
    }

    #[test]
    fn a_named_pipe_without_a_writer_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let [path, abandoned] = ["pipe", "abandoned"].map(|name| dir.path().join(name));
        let made = std::process::Command::new("mkfifo").args([&path, &abandoned]).status().expect("mkfifo");
        assert!(made.success());
        let error = open_pipe(&abandoned, Duration::ZERO).expect_err("no writer");
        assert!(error.to_string().starts_with("no process wrote to this pipe"), "{error}");
        let writer = thread::spawn({
            let path = path.clone();
            move || fs::write(path, "a: 1")
        });
        let mut text = String::new();
        open_pipe(&path, WRITER_TIMEOUT).expect("a writer").read_to_string(&mut text).expect("its text");
        assert_eq!(text, "a: 1");
        writer.join().expect("no panic").expect("written");
    }

    #[test]
    fn a_spooled_pipe_can_be_read_twice() {
        let mut set = SourceSet::default();
        set.push(spool(&b"a: 1\n---\nb: 2\n"[..], MAX_SPOOLED), "stdin");
        let [Ok(source)] = &set.sources[..] else { panic!("a spool") };
        for _ in 0..2 {
            assert_eq!(source.chunks().expect("a reader").count(), 2);
        }
    }

    fn are_cached(source: &Source) -> bool {
        let read = || source.chunks().expect("a reader").flatten().collect::<Vec<_>>();
        std::iter::zip(read(), read()).all(|(one, other)| Rc::ptr_eq(&one, &other))
    }

    #[test]
    fn small_sources_are_cached() {
        let mut set = SourceSet::default();
        let budget = set.budget.0.get();
        set.push(spool(&b"a: 1\n---\nb: 2\n"[..], MAX_SPOOLED), "small");
        set.push(spool("#\n".repeat(budget / 2).as_bytes(), MAX_SPOOLED), "large");
        set.push(spool(&b"a: \xff\n---\nb: 2\n"[..], MAX_SPOOLED), "broken");
        set.push(spool(&b"a: 1\n"[..], MAX_SPOOLED), "another");
        let sources: Vec<_> = set.sources.into_iter().flatten().collect();
        assert_eq!(sources.iter().map(are_cached).collect::<Vec<_>>(), [true, false, false, true]);
        assert_eq!(budget - set.budget.0.get(), 19, "sources that are not cached use no budget");
        drop(sources[1].chunks().expect("a reader").next());
        assert_eq!(budget - set.budget.0.get(), 19, "a source that is not read to its end uses no budget");
    }

    #[test]
    fn errors_name_a_missing_path() {
        let error = open(&[PathBuf::from("no/such.yaml")]).expect_err("no such file");
        assert!(error.to_string().starts_with("no/such.yaml: cannot be read: "), "{error}");
    }
}
