//! [`Workspace`]: weights as their kernel reads them, as many of a model as a bound allows.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use octavo_core::Result;
use octavo_core::linear::{Matrix, Prepared};

/// Bytes of prepared weights of a model, at most. With few lines a decoder decodes its codes for as many products as
/// there are tokens: a small model is several times as fast with prepared weights, and a large one stays packed.
pub(crate) const BYTES: usize = 4 << 20;

/// Room for prepared weights.
#[derive(Debug)]
pub(crate) struct Workspace {
    left: AtomicUsize,
    made: AtomicUsize,
}

impl Workspace {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes), made: AtomicUsize::new(0) })
    }

    /// Bytes of the weights that were prepared so far: each matrix is at its first product.
    pub(crate) fn nbytes(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// A place for the weights of a matrix; `None` where there is no room for them.
    pub(crate) fn place(self: &Arc<Self>, w: &Matrix<'_>) -> Result<Option<Place>> {
        let bytes = Prepared::bytes(w)?;
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        Ok(taken.is_ok().then(|| Place { workspace: Arc::clone(self), bytes, made: AtomicPtr::default() }))
    }
}

/// The place of one matrix.
#[derive(Debug)]
pub(crate) struct Place {
    workspace: Arc<Workspace>,
    bytes: usize,
    /// Null until the first product. A lock would hang a child of `fork` that finds it held.
    made: AtomicPtr<Option<Prepared>>,
}

impl Place {
    /// The weights of `w`, which is the matrix that this place was made for; `None` where they cannot be prepared.
    pub(crate) fn get(&self, w: &Matrix<'_>) -> Result<Option<&Prepared>> {
        // SAFETY: the pointer is null or comes from `Box::into_raw` below, and is freed with this place alone.
        if let Some(made) = unsafe { self.made.load(Ordering::Acquire).as_ref() } {
            return Ok(made.as_ref());
        }
        // At another SIMD level than when the place was made they may be larger.
        let made = if Prepared::bytes(w)? <= self.bytes { Prepared::new(w)? } else { None };
        let bytes = made.as_ref().map_or(0, Prepared::nbytes);
        let made = Box::into_raw(Box::new(made));
        match self.made.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.workspace.made.fetch_add(bytes, Ordering::Relaxed);
                // SAFETY: the pointer is freed with this place alone.
                Ok(unsafe { (*made).as_ref() })
            }
            // SAFETY: `made` was not shared; the other thread's is freed with this place alone.
            Err(other) => unsafe {
                drop(Box::from_raw(made));
                Ok((*other).as_ref())
            },
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let made = *self.made.get_mut();
        if !made.is_null() {
            // SAFETY: the pointer comes from `Box::into_raw`, and nobody else has the place.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}
