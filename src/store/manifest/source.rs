//! Paths to sources: a directory becomes its manifests, a pipe becomes a file that can be read twice.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Seek};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::memo::Memo;
use super::{Chunk, Chunks, Document, ManifestError};

/// A file, or a spooled pipe. It can be read any number of times, one reader at a time.
#[derive(Debug)]
pub struct Source {
    name: Arc<str>,
    origin: Origin,
    /// One for all sources that are opened together.
    memo: Rc<Memo>,
}

#[derive(Debug)]
enum Origin {
    File(PathBuf),
    /// An unlinked temporary file: it ends with the process, and nobody else can open it. A pipe may carry private keys.
    Spool(File),
}

/// Resolves paths, as [`open_each`] does.
///
/// # Errors
/// When one does not exist or cannot be read.
pub fn open(paths: &[PathBuf]) -> Result<Vec<Source>, ManifestError> {
    open_each(paths).into_iter().collect()
}

/// Resolves paths: `-` is stdin; a directory stands for every `*.yaml`, `*.yml` and `*.json` below it, in the order of
/// their names. Hidden entries are passed over (a mounted ConfigMap holds each file a second time below `..data`). What does not exist
/// or cannot be read is an error in its place.
pub fn open_each(paths: &[PathBuf]) -> Vec<Result<Source, ManifestError>> {
    let mut opening = Opening::default();
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
    sources: Vec<Result<Source, ManifestError>>,
    memo: Rc<Memo>,
}

impl Opening {
    fn push(&mut self, origin: io::Result<Origin>, name: &str) {
        self.sources.push(match origin {
            Ok(origin) => Ok(Source { name: name.into(), origin, memo: Rc::clone(&self.memo) }),
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
            } else if is_manifest(&entry.path()) && entry.path().is_file() {
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

fn is_manifest(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|e| matches!(e, "yaml" | "yml" | "json"))
}

impl Source {
    /// The path as given, or `stdin`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads from the start. A second reader of a spooled pipe moves the first one's position: use one at a time.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn chunks(&self) -> Result<Chunks<BufReader<File>>, ManifestError> {
        let opened = match &self.origin {
            Origin::File(path) => File::open(path),
            Origin::Spool(file) => file.try_clone().and_then(|mut file| file.rewind().map(|()| file)),
        };
        match opened {
            Ok(file) => Ok(Chunks::new(self.name.clone(), BufReader::new(file))),
            Err(cause) => Err(ManifestError::Read { source_name: self.name.to_string(), cause }),
        }
    }

    /// As [`Chunk::parse`], for whoever reads the sources more than once: the first mebibyte and a half of what was opened together
    /// is parsed once.
    ///
    /// # Errors
    /// Those of [`Chunk::parse`].
    pub fn parse<'c>(&self, chunk: &'c Chunk) -> Result<Option<Document<'c>>, ManifestError> {
        chunk.document(self.memo.compose(&chunk.text))
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
    fn a_spool_is_read_twice() {
        let mut opening = Opening::default();
        opening.push(spool(&b"a: 1\n---\nb: 2\n"[..]), "stdin");
        let [Ok(source)] = &opening.sources[..] else { panic!("a spool") };
        for _ in 0..2 {
            assert_eq!(source.chunks().expect("a reader").count(), 2);
        }
    }

    #[test]
    fn a_missing_path_is_named() {
        let error = open(&[PathBuf::from("no/such.yaml")]).expect_err("no such file");
        assert!(error.to_string().starts_with("no/such.yaml: cannot be read: "), "{error}");
    }
}
