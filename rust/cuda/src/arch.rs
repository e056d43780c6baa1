//! GPU architectures, and the choice of the one that a program is compiled for.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The oldest compute capability that kernels are written for: `cp.async` and int8 `mma` of 32 are there from 8.0 on.
pub const OLDEST: u32 = 80;

/// A real architecture, such as `sm_80` or `sm_90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Ten times the major and once the minor compute capability.
    pub capability: u32,
    /// With the features of this one architecture (`a`): its code runs on no other.
    pub specific: bool,
}

impl Arch {
    /// The architecture that suits devices of a compute capability best: with its own features where it has some.
    pub const fn native(capability: u32) -> Self {
        Self { capability, specific: capability >= 90 }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.capability, if self.specific { "a" } else { "" })
    }
}

impl FromStr for Arch {
    type Err = Error;

    /// Reads `sm_90a`, or `90a` for short.
    fn from_str(text: &str) -> Result<Self> {
        let short = text.strip_prefix("sm_").unwrap_or(text);
        let (digits, specific) = short.strip_suffix('a').map_or((short, false), |digits| (digits, true));
        match digits.parse::<u32>() {
            Ok(capability @ OLDEST..1000) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                if specific && capability < 90 {
                    return Err(Error::Setting(format!(
                        "architecture '{text}': features of one architecture (a) are there from sm_90a on"
                    )));
                }
                Ok(Self { capability, specific })
            }
            _ => Err(Error::Setting(format!(
                "architecture '{text}' is none that Octavo has kernels for; accepted are sm_{OLDEST} and later, \
                 such as sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a"
            ))),
        }
    }
}

/// What a compiler makes for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Machine code.
    Cubin(Arch),
    /// Code that the driver translates when it loads it: for devices that the compiler does not know yet.
    Ptx(u32),
}

impl Target {
    /// The target for a device, given what the compiler knows.
    ///
    /// In order: the device's own architecture; machine code of an older one of the same generation, which the device
    /// runs; intermediate code of the newest one before it.
    pub fn choose(capability: u32, known: &[u32]) -> Result<Self> {
        if capability < OLDEST {
            return Err(Error::Unavailable(format!(
                "the device has compute capability {}.{}; Octavo's kernels need {}.{} or later",
                capability / 10,
                capability % 10,
                OLDEST / 10,
                OLDEST % 10
            )));
        }
        if known.contains(&capability) {
            return Ok(Self::Cubin(Arch::native(capability)));
        }
        let older = || known.iter().copied().filter(|&other| (OLDEST..capability).contains(&other));
        if let Some(sibling) = older().filter(|other| other / 10 == capability / 10).max() {
            return Ok(Self::Cubin(Arch { capability: sibling, specific: false }));
        }
        older().max().map(Self::Ptx).ok_or_else(|| {
            Error::Unavailable(format!(
                "this NVRTC compiles for {known:?}, nothing that a device of compute capability {}.{} runs; \
                 install a newer one: pip install -U nvidia-cuda-nvrtc",
                capability / 10,
                capability % 10
            ))
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cubin(arch) => arch.fmt(f),
            Self::Ptx(capability) => write!(f, "compute_{capability}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [u32; 12] = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];

    fn chosen(capability: u32) -> String {
        Target::choose(capability, &KNOWN).unwrap().to_string()
    }

    #[test]
    fn a_device_gets_code_that_it_runs() {
        assert_eq!(
            [80, 89, 90, 100, 104, 120, 130].map(chosen),
            ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103", "sm_120a", "compute_121"]
        );
        assert!(matches!(Target::choose(75, &KNOWN), Err(Error::Unavailable(text)) if text.contains("7.5")));
        assert!(Target::choose(80, &[90]).is_err());
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["sm_80", "sm_86", "sm_90", "sm_90a", "sm_120a"] {
            assert_eq!(name.parse::<Arch>().unwrap().to_string(), name);
        }
        assert_eq!("90a".parse::<Arch>().unwrap(), Arch::native(90));
        for name in ["", "sm_", "sm_75", "sm_80a", "compute_90", "sm_+90", "sm_9000", "90b"] {
            assert!(matches!(name.parse::<Arch>(), Err(Error::Setting(_))), "{name}");
        }
    }
}
