//! The threads that torch computes with on the CPU, lent by its own library of threads.
//!
//! Between its operations torch's threads wait busily for the next. Threads of our own would take their cores from them,
//! and cores from ours in turn; so the work goes to the same threads, by the function that torch's own loops call.

use std::ffi::{c_uint, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

type Job = unsafe extern "C" fn(*mut c_void);
/// `GOMP_parallel` of GNU's library of threads, which LLVM's and Intel's have too: calls a function in so many threads.
type Parallel = unsafe extern "C" fn(Job, *mut c_void, c_uint, c_uint);

/// Those threads; without them the caller computes alone.
pub(crate) struct TorchTeam {
    parallel: Option<Parallel>,
}

impl TorchTeam {
    /// The threads of the library at `path`, which is loaded, or of what it was linked to.
    pub(crate) fn of(path: Option<&Path>) -> Self {
        Self {
            parallel: path.and_then(find_parallel),
        }
    }

    /// Whether there are any.
    pub(crate) const fn has_threads(&self) -> bool {
        self.parallel.is_some()
    }

    /// Does the work of `0..count`, each once, in up to `num_threads` threads. Work that panics ends the process.
    pub(crate) fn run(&self, num_threads: usize, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let shared = Shared {
            next: AtomicUsize::new(0),
            count,
            work,
        };
        match (self.parallel, c_uint::try_from(num_threads)) {
            // As many as torch has, even for less work: another number would make the library end threads and begin others.
            (Some(parallel), Ok(num_threads)) if num_threads > 1 && count > 1 => {
                let data: *const Shared<'_> = &raw const shared;
                // SAFETY: the library calls `claim` with `shared`, which outlives the call: it returns after all threads.
                unsafe { parallel(claim, data.cast_mut().cast(), num_threads, 0) };
            }
            _ => shared.claim(),
        }
    }
}

struct Shared<'a> {
    next: AtomicUsize,
    count: usize,
    work: &'a (dyn Fn(usize) + Sync),
}

impl Shared<'_> {
    fn claim(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                return;
            }
            (self.work)(index);
        }
    }
}

unsafe extern "C" fn claim(data: *mut c_void) {
    // SAFETY: `run` passes a `Shared` that lives until all threads have returned, and which is `Sync`.
    unsafe { &*data.cast::<Shared<'_>>() }.claim();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn find_parallel(path: &Path) -> Option<Parallel> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the strings end with a zero; the library is looked for among those that are loaded, and none is begun.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if library.is_null() {
            return None;
        }
        let found = libc::dlsym(library, c"GOMP_parallel".as_ptr());
        // Whatever symbol has this name has this type: it is part of the interface that compilers write calls of.
        (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, Parallel>(found))
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn find_parallel(_: &Path) -> Option<Parallel> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a library the caller does all of the work, each piece once.
    #[test]
    fn work_is_done_without_threads() {
        let done: Vec<AtomicUsize> = (0..5).map(|_| AtomicUsize::new(0)).collect();
        let team = TorchTeam::of(None);
        team.run(4, done.len(), &|index| {
            done[index].fetch_add(1, Ordering::Relaxed);
        });
        assert!(!team.has_threads() && done.iter().all(|one| one.load(Ordering::Relaxed) == 1));
    }
}
