//! Memory of this process: how it is taken from the system, and given back.

/// A block of so many bytes, or so much that is free at the heap's end, goes back to the system at
/// once.
#[cfg(target_env = "gnu")]
const KEPT_AT_MOST: nix::libc::c_int = 1 << 20;

/// Sets up one heap for all threads of this process, which keeps little that is not used. To be
/// called before the process has more than one thread.
///
/// The C library makes a heap for each thread, up to eight for each CPU, and each keeps what it
/// once took: a daemon that answers requests of megabytes on whatever thread is free then holds
/// those megabytes many times. Threads still have their own small caches, so nothing here waits for
/// it. It also learns from the first large block that is given back to keep the next ones, and
/// twice as much at the heap's end: each daemon would hold the largest of its replies for ever.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, mallopt};
        for (setting, value) in
            [(M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, KEPT_AT_MOST), (M_TRIM_THRESHOLD, KEPT_AT_MOST)]
        {
            // SAFETY: sets a number inside of the allocator, which locks it itself.
            let is_set = unsafe { mallopt(setting, value) };
            debug_assert_eq!(is_set, 1, "every glibc knows these settings");
        }
    }
}

/// Gives back whole pages that are free in the middle of the heap: worth it now and then, and after
/// something that took much and kept little of it between, such as reading a whole tree.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator locks itself; nobody holds pointers into what is free.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
