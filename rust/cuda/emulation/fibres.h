// What fibres offer to the emulation of what goes on beside them.

#pragma once

#include "base.cu"
#include "hopper.cu"

namespace emulator {

// The shared memory of the block under way; its first address is 128 and so not a multiple of 1024.
u8 *shared_begin();
u64 shared_bytes();
const u64 SHARED_BEGIN = 128;

// Number of the thread that runs, and threads of its block.
u32 thread_number();
u32 thread_count();
// Whether threads run from the last to the first, and what may happen early does.
bool is_backwards();
// `together` for the four warps of a warpgroup.
void together_group(void (*act)(void **own), void *own);
// Lets others run until `holds(own)`.
void wait_until(bool (*holds)(void *own), void *own);

// --- what goes on beside the fibres, in hopper.cpp ---

// Before a block, and after it: nothing may be left under way.
void begin_background();
void end_background();
// One thing that was put off happens, because no fibre can run; false where there is none.
bool advance_background();

} // namespace emulator
