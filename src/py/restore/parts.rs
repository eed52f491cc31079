//! Plans for the children of a container.

use pyo3::prelude::*;

use crate::{Result, grow};

/// Plans for children; those of most large containers are ready.
pub enum Parts<'py, P> {
    Ready(Vec<Bound<'py, PyAny>>),
    Plans(Vec<P>),
}

impl<'py, P: From<Bound<'py, PyAny>>> Parts<'py, P> {
    pub fn with_room(count: usize) -> Result<Self> {
        Ok(Self::Ready(grow::with_room(count)?))
    }

    /// Adds a child that is ready.
    #[inline]
    pub fn push_ready(&mut self, part: Bound<'py, PyAny>) -> Result<()> {
        match self {
            Self::Ready(parts) => grow::push(parts, part),
            Self::Plans(plans) => grow::push(plans, P::from(part)),
        }
    }

    /// Adds a plan for a child.
    pub fn push_plan(&mut self, plan: P) -> Result<()> {
        if let Self::Ready(ready) = self {
            let mut plans = grow::with_room(ready.len() + 1)?;
            plans.extend(ready.drain(..).map(P::from));
            *self = Self::Plans(plans);
        }
        match self {
            Self::Plans(plans) => grow::push(plans, plan),
            Self::Ready(_) => unreachable!("these are plans now"),
        }
    }
}
