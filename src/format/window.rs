//! Arrays that are fetched when their bytes are copied, a few ahead.
//!
//! Transfers from an accelerator overlap with writing, within a window.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::base::raw::Uninit;
use crate::format::layout::Payload;
use crate::{Error, Result, base::grow};

pub trait Fetch {
    type Transfer;
    type Here: Payload;

    fn start(&self) -> Result<Self::Transfer>;

    fn finish(&self, transfer: Self::Transfer) -> Result<Self::Here>;
}

/// Arrays in the order of copying.
///
/// Its lock is held while arrays are fetched, so that only one window is in memory. Callers must
/// hold nothing that [`Fetch`] needs.
pub struct Window<A: Fetch> {
    /// Bytes in memory or in transfer.
    most: usize,
    slots: Mutex<Slots<A>>,
}

struct Slots<A: Fetch> {
    all: Vec<Slot<A>>,
    /// Bytes of arrays in memory or in transfer.
    taken: usize,
    /// The latest window: none of these needs to be begun.
    begun: Range<usize>,
}

struct Slot<A: Fetch> {
    array: A,
    len: usize,
    copied: usize,
    transfer: Option<A::Transfer>,
    here: Option<Arc<A::Here>>,
}

impl<A: Fetch> Slot<A> {
    fn is_begun(&self) -> bool {
        self.transfer.is_some() || self.here.is_some()
    }
}

impl<A: Fetch> Slots<A> {
    fn begin(&mut self, number: usize) -> Result<()> {
        let slot = &mut self.all[number];
        if !slot.is_begun() {
            slot.transfer = Some(slot.array.start()?);
            self.taken += slot.len;
        }
        Ok(())
    }

    fn finish(&mut self, number: usize) -> Result<Arc<A::Here>> {
        self.begin(number)?;
        let slot = &mut self.all[number];
        if let Some(transfer) = slot.transfer.take() {
            self.taken -= slot.len;
            slot.here = Some(Arc::new(slot.array.finish(transfer)?));
            self.taken += slot.len;
        }
        Ok(slot.here.clone().expect("it has just been fetched"))
    }

    /// Begins an array, and those after it that fit `most` bytes.
    fn begin_window(&mut self, number: usize, most: usize) -> Result<()> {
        self.begin(number)?;
        let mut end = number + 1;
        if self.begun.contains(&number) {
            end = self.begun.end;
        }
        while let Some(slot) = self.all.get(end)
            && (slot.is_begun() || self.taken.saturating_add(slot.len) <= most)
        {
            self.begin(end)?;
            end += 1;
        }
        self.begun = number..end;
        Ok(())
    }

    fn copied(&mut self, number: usize, len: usize) {
        let slot = &mut self.all[number];
        slot.copied += len;
        if slot.copied >= slot.len {
            slot.copied = 0;
            if slot.here.take().is_some() {
                self.taken -= slot.len;
            }
        }
    }
}

impl<A: Fetch> Window<A> {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            slots: Mutex::new(Slots {
                all: Vec::new(),
                taken: 0,
                begun: 0..0,
            }),
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Slots<A>>> {
        let poisoned = |_| Error::Option("an earlier fetch of an array panicked".into());
        self.slots.lock().map_err(poisoned)
    }

    /// Must come before the first copy. Returns the array's number.
    pub fn add(&self, array: A, len: usize) -> Result<usize> {
        let mut slots = self.lock()?;
        let slot = Slot {
            array,
            len,
            copied: 0,
            transfer: None,
            here: None,
        };
        grow::push(&mut slots.all, slot)?;
        Ok(slots.all.len() - 1)
    }

    /// Drops the array after its last byte.
    pub fn copy_to<'t>(
        &self,
        number: usize,
        start: usize,
        target: &'t mut Uninit,
    ) -> Result<&'t mut [u8]> {
        let copied = self.get(number)?.copy_to(start, target)?;
        self.lock()?.copied(number, copied.len());
        Ok(copied)
    }

    /// Fetches all arrays now. Each stays until it is copied.
    pub fn fetch_all(&self) -> Result<()> {
        let mut slots = self.lock()?;
        let mut numbers = 0..slots.all.len();
        numbers.clone().try_for_each(|number| slots.begin(number))?;
        numbers.try_for_each(|number| slots.finish(number).map(drop))
    }

    fn get(&self, number: usize) -> Result<Arc<A::Here>> {
        let mut slots = self.lock()?;
        if slots.all[number].here.is_none() {
            slots.begin_window(number, self.most)?;
        }
        slots.finish(number)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::base::raw::append_with;

    #[derive(Default)]
    struct Counts {
        here: AtomicUsize,
        most: AtomicUsize,
        started: AtomicUsize,
    }

    struct Remote<'a>(Vec<u8>, &'a Counts);

    struct Local<'a>(Vec<u8>, &'a Counts);

    impl Drop for Local<'_> {
        fn drop(&mut self) {
            self.1.here.fetch_sub(self.0.len(), Ordering::Relaxed);
        }
    }

    impl Payload for Local<'_> {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
            self.0.copy_to(start, target)
        }
    }

    impl<'a> Fetch for Remote<'a> {
        type Transfer = ();
        type Here = Local<'a>;

        fn start(&self) -> Result<()> {
            let here = self.1.here.fetch_add(self.0.len(), Ordering::Relaxed) + self.0.len();
            self.1.most.fetch_max(here, Ordering::Relaxed);
            self.1.started.fetch_add(1, Ordering::Relaxed);
            if self.0.is_empty() {
                return Err(Error::Option("deleted".into()));
            }
            Ok(())
        }

        fn finish(&self, (): ()) -> Result<Local<'a>> {
            Ok(Local(self.0.clone(), self.1))
        }
    }

    #[test]
    fn no_more_than_a_window_is_here() {
        let counts = Counts::default();
        let window = Window::new(100);
        let arrays: Vec<Vec<u8>> = (0..20).map(|i| vec![i; 30 + usize::from(i)]).collect();
        for array in &arrays {
            window
                .add(Remote(array.clone(), &counts), array.len())
                .unwrap();
        }
        for round in 1..3 {
            for (number, array) in arrays.iter().enumerate() {
                let mut bytes = Vec::new();
                for range in [0..array.len() / 3, array.len() / 3..array.len()] {
                    append_with(&mut bytes, range.len(), |target| {
                        window.copy_to(number, range.start, target)
                    })
                    .unwrap();
                }
                assert_eq!(bytes, *array);
                if number == 0 {
                    assert!(counts.started.load(Ordering::Relaxed) > 20 * (round - 1) + 1);
                }
            }
            assert_eq!(counts.started.load(Ordering::Relaxed), 20 * round);
            assert_eq!(counts.here.load(Ordering::Relaxed), 0);
        }
        assert!(counts.most.load(Ordering::Relaxed) <= 100);
    }

    #[test]
    fn an_array_that_is_larger_than_the_window_comes_alone() {
        let counts = Counts::default();
        let window = Window::new(10);
        for _ in 0..3 {
            window.add(Remote(vec![1; 50], &counts), 50).unwrap();
        }
        for number in 0..3 {
            window
                .copy_to(number, 0, &mut [MaybeUninit::new(0); 50])
                .unwrap();
        }
        assert_eq!(counts.most.load(Ordering::Relaxed), 50);
    }

    #[test]
    fn arrays_come_in_any_order() {
        let counts = Counts::default();
        let window = Window::new(100);
        for number in 0..40 {
            window.add(Remote(vec![number; 9], &counts), 9).unwrap();
        }
        for number in (0..40).map(|step| step * 27 % 40) {
            let mut bytes = [MaybeUninit::new(0); 9];
            let copied = window.copy_to(number, 0, &mut bytes).unwrap();
            assert!(copied.iter().all(|byte| usize::from(*byte) == number));
        }
        assert!(counts.most.load(Ordering::Relaxed) <= 109);
    }

    #[test]
    fn all_can_be_fetched_at_once() {
        let counts = Counts::default();
        let window = Window::new(10);
        for _ in 0..3 {
            window.add(Remote(vec![1; 50], &counts), 50).unwrap();
        }
        window.fetch_all().unwrap();
        assert_eq!(counts.here.load(Ordering::Relaxed), 150);
        for number in 0..3 {
            window
                .copy_to(number, 0, &mut [MaybeUninit::new(0); 50])
                .unwrap();
        }
        assert_eq!(counts.started.load(Ordering::Relaxed), 3);
        assert_eq!(counts.here.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_array_that_cannot_be_had_is_an_error() {
        let counts = Counts::default();
        let window = Window::new(10);
        window.add(Remote(Vec::new(), &counts), 0).unwrap();
        assert!(window.copy_to(0, 0, &mut []).is_err());
    }
}
