// What ThreadSanitizer is told, where the emulator is built with RACES: each fibre is a thread, ordered with the others of
// its block by barriers and `sync_warp` alone. Collectives exchange values and order nothing, as on the device.

#pragma once

#if defined(RACES)
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_read_range(void *, unsigned long), __tsan_write_range(void *, unsigned long);
extern "C" void AnnotateIgnoreReadsBegin(const char *, int), AnnotateIgnoreReadsEnd(const char *, int);
extern "C" void AnnotateIgnoreWritesBegin(const char *, int), AnnotateIgnoreWritesEnd(const char *, int);
#endif

namespace emulator::races {

#if defined(RACES)

// Places that threads meet at; they alternate, for some leave one while others are on their way to the next.
struct Meeting {
    char places[2];
} block, warps[32];
char ended;
void *scheduler = __tsan_get_current_fiber();

struct Thread {
    void *fibre;
    u32 barriers, meetings;

    void begin() { fibre = __tsan_create_fiber(0), barriers = meetings = 0; }
    void enter() { __tsan_switch_to_fiber(fibre, __tsan_switch_to_fiber_no_sync); }
    void end() { __tsan_release(&ended); }
    void join() { __tsan_acquire(&ended), __tsan_destroy_fiber(fibre); }
    void before_barrier() { __tsan_release(&block.places[barriers & 1]); }
    void after_barrier() { __tsan_acquire(&block.places[barriers++ & 1]); }
    void before_warp(u32 warp) { __tsan_release(&warps[warp].places[meetings & 1]); }
    void after_warp(u32 warp) { __tsan_acquire(&warps[warp].places[meetings++ & 1]); }
};
void enter_scheduler() { __tsan_switch_to_fiber(scheduler, __tsan_switch_to_fiber_no_sync); }
void read(const void *p, u32 bytes) { __tsan_read_range((void *)p, bytes); }
void written(void *p, u32 bytes) { __tsan_write_range(p, bytes); }
void ignore(bool on) {
    if (on) AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    else AnnotateIgnoreReadsEnd(__FILE__, __LINE__), AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}

#else

struct Thread {
    void begin() {}
    void enter() {}
    void end() {}
    void join() {}
    void before_barrier() {}
    void after_barrier() {}
    void before_warp(u32) {}
    void after_warp(u32) {}
};
inline void enter_scheduler() {}
inline void read(const void *, u32) {}
inline void written(void *, u32) {}
inline void ignore(bool) {}

#endif

} // namespace emulator::races
