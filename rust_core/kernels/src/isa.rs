//! The instruction sets the kernels are written for, and which of them this CPU has.
//!
//! Detection happens at run time, so one binary serves every machine; a set is only chosen when its kernels give
//! the results of the plain ones here. All sets give bit-identical results, so a test may pick any available one.

use std::sync::OnceLock;

/// An instruction set, from the plainest to the widest; a later one includes the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust: every CPU.
    Scalar,
    /// AVX2, FMA and F16C (and AVX-VNNI where the CPU has it).
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// AVX-512 as above and AMX tiles for int8, with the system's permission to use them.
    Amx,
}

impl Isa {
    /// Every set, plainest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Amx];

    /// The widest set this CPU (and kernel) offers whose kernels pass [`Self::self_test`]; found once.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let supported = Self::ALL.into_iter().rev().filter(|isa| isa.is_supported());
            supported
                .into_iter()
                .find(|isa| isa.self_test())
                .unwrap_or(Self::Scalar)
        })
    }

    /// [`Self::best`], under the name configuration and diagnosis use.
    pub fn detect() -> Self {
        Self::best()
    }

    /// Every set this CPU offers, plainest first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this CPU offers the set.
    pub fn is_available(self) -> bool {
        self <= Self::best()
    }

    /// Whether small products of every weight type equal the plain ones bit for bit.
    ///
    /// False, too, for a set this CPU lacks. Tiles are tried in a child process: compilers and hypervisors have got
    /// their set-up wrong, and then the first tile instruction ends the process that runs it.
    pub fn self_test(self) -> bool {
        let agrees = || crate::matmul::agrees_with_scalar(self);
        self.is_supported()
            && if self == Self::Amx {
                child::holds(agrees)
            } else {
                agrees()
            }
    }

    /// The name in configuration files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// The set with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Whether CPU and system have every instruction of the set.
    pub(crate) fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => cpu::has_avx2(),
            Self::Avx512 => cpu::has_avx2() && cpu::has_avx512(),
            Self::Amx => Self::Avx512.is_supported() && cpu::has_amx_int8() && cpu::may_use_tiles(),
        }
    }
}

/// The instruction-set extensions this CPU has, of those that matter to numeric kernels.
pub fn features() -> Vec<&'static str> {
    cpu::features()
}

#[cfg(target_arch = "x86_64")]
mod cpu {
    use std::arch::x86_64::{__cpuid_count, _xgetbv};

    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
    }

    pub(super) fn has_avx512() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
    }

    pub(super) fn has_amx_int8() -> bool {
        let tiles = amx_bits();
        tiles & AMX_TILE != 0 && tiles & AMX_INT8 != 0
    }

    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;

    /// The AMX bits of CPUID leaf 7, zero unless the system saves the tile registers (XCR0 bits 17 and 18).
    fn amx_bits() -> u32 {
        const TILE_STATE: u64 = 0b11 << 17;
        if !is_x86_feature_detected!("avx512f") {
            return 0;
        }
        // SAFETY: a CPU with AVX-512 under a system that enables it has XGETBV.
        if unsafe { xcr0() } & TILE_STATE != TILE_STATE {
            return 0;
        }
        __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE | AMX_INT8)
    }

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: register 0 exists wherever XGETBV does.
        unsafe { _xgetbv(0) }
    }

    /// Asks Linux for the tile registers, once per process; threads started later or before share the answer.
    #[cfg(target_os = "linux")]
    pub(super) fn may_use_tiles() -> bool {
        const SYS_ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
        const XFEATURE_XTILEDATA: i64 = 18;
        unsafe extern "C" {
            fn syscall(number: i64, ...) -> i64;
        }
        // SAFETY: the call takes two integers and touches no memory of ours.
        unsafe { syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    /// Other systems grant the tile registers on first use or not at all; not tried.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn may_use_tiles() -> bool {
        false
    }

    pub(super) fn features() -> Vec<&'static str> {
        let amx = amx_bits();
        [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("f16c", is_x86_feature_detected!("f16c")),
            ("avxvnni", is_x86_feature_detected!("avxvnni")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512bw", is_x86_feature_detected!("avx512bw")),
            ("avx512vl", is_x86_feature_detected!("avx512vl")),
            ("avx512dq", is_x86_feature_detected!("avx512dq")),
            ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
            ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
            ("avx512fp16", is_x86_feature_detected!("avx512fp16")),
            ("amx-tile", amx & AMX_TILE != 0),
            ("amx-int8", amx & AMX_INT8 != 0),
            ("amx-bf16", amx & AMX_BF16 != 0),
        ]
        .into_iter()
        .filter_map(|(name, has)| has.then_some(name))
        .collect()
    }
}

/// A trial that may end the process it runs in.
#[cfg(target_os = "linux")]
mod child {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn alarm(seconds: u32) -> u32;
        fn _exit(status: i32) -> !;
    }

    /// Long past what a trial takes; ends a child that waits for a lock another thread held at the fork.
    const LIMIT_SECONDS: u32 = 5;

    /// Whether `trial`, run in a child process, ends well and in time, and says true.
    pub(super) fn holds(trial: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child computes on memory of its own and leaves by `_exit`, running no handler of ours; the C
        // library keeps its allocator usable across a fork.
        let pid = unsafe { fork() };
        if pid == 0 {
            // SAFETY: asks for a signal that ends the child.
            unsafe { alarm(LIMIT_SECONDS) };
            let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(trial)).unwrap_or(false);
            // SAFETY: ends the child.
            unsafe { _exit(i32::from(!is_well)) }
        }
        let mut status = -1;
        // SAFETY: writes the status of our own child.
        pid > 0 && unsafe { waitpid(pid, &raw mut status, 0) } == pid && status == 0
    }
}

/// Tiles are not offered on other systems.
#[cfg(not(target_os = "linux"))]
mod child {
    pub(super) fn holds(trial: impl FnOnce() -> bool) -> bool {
        trial()
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod cpu {
    pub(super) fn has_avx2() -> bool {
        false
    }

    pub(super) fn has_avx512() -> bool {
        false
    }

    pub(super) fn has_amx_int8() -> bool {
        false
    }

    pub(super) fn may_use_tiles() -> bool {
        false
    }

    pub(super) fn features() -> Vec<&'static str> {
        if cfg!(target_feature = "neon") {
            vec!["neon"]
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and sets are one to one.
    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("AVX512"), None);
    }

    /// A trial in a child tells true from false, and one that kills its process counts as failed.
    #[cfg(target_os = "linux")]
    #[test]
    fn trials_in_a_child_survive_their_end() {
        assert!(child::holds(|| Isa::Scalar < Isa::Amx));
        assert!(!child::holds(|| false));
        assert!(!child::holds(|| std::process::abort()));
    }

    /// The chosen set is supported and gives the plain results, as does every set below it.
    #[test]
    fn available_sets_pass_the_self_test() {
        for isa in Isa::available() {
            assert!(isa.self_test(), "{}", isa.name());
        }
        assert!(Isa::available().contains(&Isa::Scalar));
    }
}
