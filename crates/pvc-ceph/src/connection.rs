//! The connection of a process with a cluster, which all share who ask Ceph through librados.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::CephOptions;
use crate::rados::{Errno, Rados, RadosError};
use crate::rbd::QUICK;

/// Time that Ceph may take to let us in, and its monitors and managers for each answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// Settings of librados beside the configuration file.
fn settings(options: &CephOptions) -> Vec<(&'static str, String)> {
    let (answer, quick) = (ANSWER.as_secs().to_string(), QUICK.as_secs().to_string());
    vec![
        ("keyring", options.keyring.to_string_lossy().into_owned()),
        ("client_mount_timeout", answer.clone()),
        ("rados_mon_op_timeout", answer),
        // While its OSD is lost and not yet replaced, an object is away for half as long.
        ("rados_osd_op_timeout", quick),
        // Images are only looked at: a cache would be a thread for each look.
        ("rbd_cache", "false".to_owned()),
        // The daemon's output and its folders are its own.
        ("log_to_stderr", "false".to_owned()),
        ("err_to_stderr", "false".to_owned()),
        ("log_file", String::new()),
        ("admin_socket", String::new()),
    ]
}

/// Time after which a thread that makes the connection has met something that librados does not
/// end, and another may try.
const CONNECTING: Duration = Duration::from_secs(10);

/// The connection, made when it is first needed.
pub(crate) struct Connection {
    options: CephOptions,
    state: Mutex<State>,
    /// Told when a thread has made the connection, or could not.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: Option<Arc<Rados>>,
    /// Time at which the thread that is still at it began to make the connection.
    connecting: Option<Instant>,
    /// Number of times that it could not be made, and why the last time.
    failures: u64,
    failure: Option<RadosError>,
}

impl Connection {
    pub fn new(options: CephOptions) -> Self {
        Connection { options, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Asks it something, after having made it if there is none. A connection that has lost touch
    /// is given up.
    pub fn ask<T>(
        &self,
        question: impl FnOnce(&Rados) -> Result<T, RadosError>,
    ) -> Result<T, RadosError> {
        let rados = self.get()?;
        let answered = question(&rados);
        if answered.as_ref().is_err_and(has_lost_touch) {
            let lost = self.lock().open.take_if(|now| Arc::ptr_eq(now, &rados));
            // What closes it may take long, so nothing is locked here.
            drop(lost);
        }
        answered
    }

    pub fn is_open(&self) -> bool {
        self.lock().open.is_some()
    }

    /// Closes the connection, unless somebody is at it, who does that at the end then.
    pub fn close(&self) {
        let open = self.lock().open.take();
        drop(open);
    }

    /// Leaves the connection to those who are at it and do not come back: the next one gets
    /// another.
    pub fn give_up(&self) {
        let open = self.lock().open.take();
        // Should nobody be at it any more, closing it may hang as well. Without a thread it stays.
        let open = open.map(std::mem::ManuallyDrop::new);
        let close = move || drop(open.map(std::mem::ManuallyDrop::into_inner));
        let _ = std::thread::Builder::new().name("ceph close".to_owned()).spawn(close);
    }

    /// The connection. One thread makes it, and the others wait for how that ends.
    fn get(&self) -> Result<Arc<Rados>, RadosError> {
        let mut state = self.lock();
        loop {
            if let Some(rados) = &state.open {
                return Ok(rados.clone());
            }
            let since = state.connecting.map(|since| since.elapsed());
            let Some(left) = since.and_then(|since| CONNECTING.checked_sub(since)) else { break };
            let failures = state.failures;
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if let Some(failure) = state.failure.clone().filter(|_| state.failures != failures) {
                return Err(failure);
            }
        }
        let begun = Instant::now();
        state.connecting = Some(begun);
        drop(state);
        let CephOptions { config, user, .. } = &self.options;
        let made = Rados::connect(config, user, &settings(&self.options)).map(Arc::new);
        let mut state = self.lock();
        state.connecting.take_if(|since| *since == begun);
        match &made {
            Ok(rados) => _ = state.open.get_or_insert_with(|| rados.clone()),
            Err(error) => {
                state.failures += 1;
                state.failure = Some(error.clone());
            }
        }
        self.changed.notify_all();
        made
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a new connection may do better: librados finds other monitors by itself, but not its way
/// out of a session that was taken from it.
fn has_lost_touch(error: &RadosError) -> bool {
    const NOT_CONNECTED: i32 = 107;
    const SHUT_DOWN: i32 = 108;
    matches!(error, RadosError::Refused { errno, .. }
        if *errno == Errno::TIMED_OUT || [NOT_CONNECTED, SHUT_DOWN].contains(&errno.0))
}

#[cfg(test)]
mod tests {
    use pvc_model::storage::RbdAccess;

    use super::*;

    fn nowhere() -> Connection {
        let access = RbdAccess {
            monitors: Vec::new(),
            port: 6789,
            user: "libvirt".to_owned(),
            secret: None,
        };
        Connection::new(CephOptions {
            config: "/nonexistent/ceph.conf".into(),
            keyring: "/nonexistent/keyring".into(),
            user: "admin".to_owned(),
            access,
        })
    }

    #[test]
    fn those_who_wait_for_a_connection_that_cannot_be_made_hear_why() {
        let connection = nowhere();
        std::thread::scope(|scope| {
            let asked = [0; 8].map(|_| scope.spawn(|| connection.ask(|_| Ok(()))));
            for asked in asked {
                asked.join().unwrap().unwrap_err();
            }
        });
        assert!(!connection.is_open());
        assert_eq!(connection.lock().connecting, None);
        connection.give_up();
    }

    #[test]
    fn a_thread_that_never_makes_the_connection_keeps_nobody_from_it() {
        let connection = nowhere();
        let long_ago = Instant::now().checked_sub(CONNECTING * 2);
        connection.lock().connecting = Some(long_ago.unwrap());
        connection.ask(|_| Ok(())).unwrap_err();
        assert_eq!(connection.lock().failures, 1, "it was tried");
    }
}
