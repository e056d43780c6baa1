// Runs the calls of a file on the buffers of the same file. The kernels' threads are fibres.
//
// emulator JOB: reads JOB, writes the buffers back to JOB.out. Any mistake of a kernel - an address beyond its buffer, a
// misaligned vector, a barrier that not all threads reach, a guard overwritten - ends the process with a line on stderr.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "fibres.h"
#include "races.h"

namespace emulator {

const Place *place;

namespace {

const u64 STACK = 128 << 10;
const u32 POISON = 0xfff7fde5; // not a number in float32 and bfloat16

struct Copy {
    void *to;
    const void *from;
    u32 bytes, count;
};

struct Fibre {
    enum State { READY, AT_WARP, AT_GROUP, AT_BARRIER, WAITING, DONE } state;
    Place place;
    ucontext_t context;
    u8 *stack;
    races::Thread thread;
    void (*act)(void **);
    bool (*holds)(void *);
    void *own;
    bool waited;
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
};

typedef void (*Entry)(const Value *, int);

std::string where; // the call under way
std::vector<Fibre> fibres;
u32 count;
Fibre *current;
ucontext_t scheduler;
const void *scheduler_stack;
size_t scheduler_size;
u8 *shared_memory;
u64 shared_size;
bool backwards;
u64 block_number;
u64 conflicts;
Entry entry;
bool early; // the call must wait for the one ahead of it
std::vector<Value> arguments;

void leave() {
    Fibre *self = current;
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(self->state == Fibre::DONE ? nullptr : &fake, scheduler_stack, scheduler_size);
#endif
    races::enter_scheduler();
    swapcontext(&self->context, &scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_size);
#endif
}

void run_fibre() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
    entry(arguments.data(), (int)arguments.size());
    if (early && !current->waited) fail("a thread that never waits for the kernel ahead of its own");
    current->state = Fibre::DONE;
    current->thread.end();
    leave();
}

void resume(Fibre &fibre) {
    current = &fibre;
    place = &fibre.place;
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fibre.stack, STACK);
#endif
    fibre.thread.enter();
    swapcontext(&scheduler, &fibre.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void prepare(Fibre &fibre) {
    if (!fibre.stack) {
        void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED) fail("no memory for stacks");
        fibre.stack = (u8 *)stack;
        getcontext(&fibre.context);
    }
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fibre.stack, STACK);
#endif
    fibre.state = Fibre::READY;
    fibre.waited = false;
    fibre.thread.begin();
    fibre.open.clear();
    fibre.groups.clear();
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = STACK;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, run_fibre, 0);
}

void run_block(Index block, Index block_size, Index grid_size, u32 shared_bytes) {
    block_number++;
    const u64 whole = (SHARED_BEGIN + shared_bytes + 1023) / 1024 * 1024;
    u8 *const base = (u8 *)aligned_alloc(1024, whole);
    shared_memory = base + SHARED_BEGIN;
    shared_size = shared_bytes;
    for (u32 i = 0; i + 4 <= shared_bytes; i += 4) memcpy(shared_memory + i, &POISON, 4);
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(base, SHARED_BEGIN);
    __asan_poison_memory_region(shared_memory + shared_bytes, whole - SHARED_BEGIN - shared_bytes);
#endif
    begin_background();
    for (u32 i = 0; i < count; i++) {
        Index thread{i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y};
        fibres[i].place = Place{thread, block, block_size, grid_size, i % 32};
        prepare(fibres[i]);
    }
    for (;;) {
        u32 ready = 0, at_barrier = 0, waiting = 0, done = 0;
        for (u32 i = 0; i < count; i++) {
            Fibre &fibre = fibres[backwards ? count - 1 - i : i];
            if (fibre.state == Fibre::READY) resume(fibre);
        }
        for (u32 i = 0; i < count; i++) {
            Fibre &fibre = fibres[i];
            if (fibre.state == Fibre::WAITING && fibre.holds(fibre.own)) fibre.state = Fibre::READY;
            ready += fibre.state == Fibre::READY, waiting += fibre.state == Fibre::WAITING;
            at_barrier += fibre.state == Fibre::AT_BARRIER, done += fibre.state == Fibre::DONE;
        }
        if (done == count) break;
        if (at_barrier == count) {
            for (u32 i = 0; i < count; i++) fibres[i].state = Fibre::READY;
            continue;
        }
        if (ready || advance_background()) continue;
        if (waiting) fail("threads wait for what never comes");
        fail(at_barrier ? "a barrier that not all threads reach" : "a collective that not all lanes reach");
    }
    end_background();
    for (u32 i = 0; i < count; i++) fibres[i].thread.join();
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(base, whole);
#endif
    free(base);
}

// Waits, in `state`, until `width` neighbours are there too.
void meet(Fibre::State state, u32 width, void (*act)(void **), void *own) {
    u32 first = (u32)(current - fibres.data()) / width * width, end = first + width < count ? first + width : count;
    current->act = act;
    current->own = own;
    current->state = state;
    void *all[128] = {};
    for (u32 i = first; i < end; i++) {
        if (fibres[i].state != state) {
            leave();
            return;
        }
        if (fibres[i].act != act) fail("lanes of a warp meet at different collectives");
        all[i - first] = fibres[i].own;
    }
    races::ignore(true);
    act(all);
    races::ignore(false);
    for (u32 i = first; i < end; i++) fibres[i].state = Fibre::READY;
}

} // namespace

[[noreturn]] void fail(const char *what) {
    fprintf(stderr, "%s: %s", where.c_str(), what);
    if (place)
        fprintf(stderr, " (block %u %u %u, thread %u %u %u)", place->block.x, place->block.y, place->block.z, place->thread.x,
                place->thread.y, place->thread.z);
    fprintf(stderr, "\n");
    fflush(stderr);
    _Exit(3);
}

u8 *dynamic_shared() { return shared_memory; }

void *static_shared(void *store, u64 bytes, u64 *block) {
    if (*block != block_number) {
        *block = block_number;
        for (u64 i = 0; i + 4 <= bytes; i += 4) *(u32 *)((u8 *)store + i) = POISON;
    }
    return store;
}

u8 *shared_begin() { return shared_memory; }
u64 shared_bytes() { return shared_size; }
u32 thread_number() { return (u32)(current - fibres.data()); }
u32 thread_count() { return count; }
bool is_backwards() { return backwards; }

void together(void (*act)(void **), void *own) { meet(Fibre::AT_WARP, 32, act, own); }

void together_group(void (*act)(void **), void *own) {
    if (thread_number() / 128 * 128 + 128 > count) fail("a warpgroup of fewer than four warps");
    meet(Fibre::AT_GROUP, 128, act, own);
}

void wait_until(bool (*holds)(void *), void *own) {
    if (holds(own)) return;
    current->holds = holds;
    current->own = own;
    current->state = Fibre::WAITING;
    leave();
}

void wait_for_predecessor() { current->waited = true; }

void sync_warp() {
    u32 warp = (u32)(current - fibres.data()) / 32;
    current->thread.before_warp(warp);
    together([](void **) {}, nullptr);
    current->thread.after_warp(warp);
}

void barrier() {
    current->state = Fibre::AT_BARRIER;
    current->thread.before_barrier();
    leave();
    current->thread.after_barrier();
}

void copy(void *to, const void *from, u32 bytes, u32 valid) {
    if ((u64)to % bytes || (valid && (u64)from % bytes)) fail("misaligned copy");
    if (valid > bytes) fail("a copy of more bytes than it has");
    if ((u8 *)to < shared_memory) fail("a copy to other than shared memory");
    races::read(from, valid);
    races::written(to, bytes); // from now on until the wait
    current->open.push_back(Copy{to, from, bytes, valid});
}

void commit() {
    current->groups.push_back(current->open);
    current->open.clear();
}

void wait(int left) {
    while ((int)current->groups.size() > left) {
        for (const Copy &c : current->groups.front()) {
            races::written(c.to, c.bytes);
            for (u32 i = 0; i < c.bytes; i++) ((u8 *)c.to)[i] = 0;
            for (u32 i = 0; i < c.count; i++) ((u8 *)c.to)[i] = ((const u8 *)c.from)[i];
        }
        current->groups.pop_front();
    }
}

void count_conflicts(u32 n) { conflicts += n; }

u32 Matrices::straight(const u8 *const (&rows)[8], int lane) {
    u32 word = 0;
    for (int i = 0; i < 4; i++) word |= (u32)rows[lane / 4][4 * (lane % 4) + i] << 8 * i;
    return word;
}

u32 Matrices::transposed(const u8 *const (&rows)[8], int lane) {
    u32 word = 0;
    for (int i = 0; i < 4; i++) word |= (u32)rows[2 * (lane % 4) + i / 2][2 * (lane / 4) + i % 2] << 8 * i;
    return word;
}

void Matrices::each(void **own, Word *word) {
    for (int matrix = 0; matrix < 4; matrix++) {
        const u8 *rows[8];
        u32 rows_at[8] = {}; // rows by where they begin in 128 bytes
        for (int row = 0; row < 8; row++) {
            if (!own[8 * matrix + row]) fail("matrices without all lanes of the warp");
            rows[row] = ((Matrices *)own[8 * matrix + row])->row;
            rows_at[(u64)rows[row] / 16 % 8]++;
        }
        for (u32 n : rows_at)
            if (n > 1) count_conflicts(n - 1);
        for (int lane = 0; lane < 32; lane++) ((Matrices *)own[lane])->r[matrix] = word(rows, lane);
    }
}

} // namespace emulator

using namespace emulator;

namespace {

// Bytes before and after a buffer that nobody may touch.
const u64 GUARD = 256;

struct Buffer {
    u8 *base; // a multiple of 128; the buffer begins `offset` later
    u64 offset, bytes;
};

struct Reader {
    FILE *file;
    template <class T> T get() {
        T v;
        if (fread(&v, sizeof v, 1, file) != 1) fail("the job is cut short");
        return v;
    }
    std::string text() {
        std::string s(get<u32>(), 0);
        for (char &c : s) c = get<char>();
        return s;
    }
};

// What the driver makes, or refuses to make, of a matrix.
TensorMap map_of(Reader &job, const u8 *address) {
    Matrix matrix{address, job.get<u64>(), job.get<u64>(), job.get<u64>(), job.get<u64>(), job.get<u64>()};
    bool fits = matrix.rows - 1 < 1ull << 32 && matrix.columns - 1 < 1ull << 32 && matrix.pitch < 1ull << 40;
    if (!fits || (u64)address % 16 || matrix.pitch % 16) fail("a matrix that no tensor map describes");
    if (matrix.box_rows - 1 >= 256 || matrix.box_columns != 128) fail("boxes that no tensor map describes");
    TensorMap map = {};
    memcpy(&map, &matrix, sizeof matrix);
    return map;
}

void check_guards(const Buffer &b) {
    for (u64 i = 0; i < GUARD; i++) {
        bool before = i < b.offset && b.base[i] != 0xa5, after = b.base[b.offset + b.bytes + i] != 0xa5;
        if (before || after) fail(before ? "a kernel wrote before a buffer" : "a kernel wrote after a buffer");
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    Reader job{fopen(argv[1], "rb")};
    if (!job.file) return 2;
    std::vector<Buffer> buffers(job.get<u32>());
    for (Buffer &b : buffers) {
        b.offset = job.get<u32>();
        b.bytes = job.get<u64>();
        u64 whole = (b.offset + b.bytes + GUARD + 127) / 128 * 128;
        b.base = (u8 *)aligned_alloc(128, whole);
        memset(b.base, 0xa5, whole);
        if (b.bytes && fread(b.base + b.offset, b.bytes, 1, job.file) != 1) fail("the job is cut short");
#if defined(__SANITIZE_ADDRESS__)
        __asan_poison_memory_region(b.base, b.offset);
        __asan_poison_memory_region(b.base + b.offset + b.bytes, whole - b.offset - b.bytes);
#endif
    }
    fibres.resize(1024); // once: contexts hold addresses of their own
    backwards = job.get<u8>();
    for (u32 calls = job.get<u32>(); calls > 0; calls--) {
        std::string library = job.text(), name = job.text();
        where = job.text() + ": " + name;
        void *handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle) fail(dlerror());
        entry = (Entry)dlsym(handle, ("octavo_" + name).c_str());
        if (!entry) fail("no such entry");
        Index grid{job.get<u32>(), job.get<u32>(), job.get<u32>()}, block{job.get<u32>(), job.get<u32>(), job.get<u32>()};
        u32 shared = job.get<u32>();
        arguments.resize(job.get<u32>());
        early = job.get<u8>();
        std::deque<TensorMap> maps;
        for (Value &v : arguments) {
            v.kind = job.get<u8>();
            u64 raw = job.get<u64>();
            memcpy(&v.l, &raw, 8);
            if ((v.kind == 'a' || v.kind == 'm') && raw) {
                if ((raw >> 40) - 1 >= buffers.size()) fail("an address of no buffer");
                v.address = buffers[(raw >> 40) - 1].base + (raw & ((1ull << 40) - 1));
            }
            if (v.kind == 'm') v.address = &maps.emplace_back(map_of(job, (const u8 *)v.address));
        }
        count = block.x * block.y * block.z;
        if (count == 0 || count > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
            fail("a grid or block that no device takes");
        if (shared > 227 << 10) fail("more shared memory than any device has");
        u64 blocks = (u64)grid.x * grid.y * grid.z;
        for (u64 i = 0; i < blocks; i++) {
            u64 b = backwards ? blocks - 1 - i : i;
            run_block(Index{(u32)(b % grid.x), (u32)(b / grid.x % grid.y), (u32)(b / grid.x / grid.y)}, block, grid, shared);
        }
        place = nullptr;
    }
    FILE *out = fopen((std::string(argv[1]) + ".out").c_str(), "wb");
    if (!out) return 2;
    fwrite(&conflicts, 8, 1, out);
    for (Buffer &b : buffers) {
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(b.base, b.offset + b.bytes + GUARD);
#endif
        check_guards(b);
        fwrite(b.base + b.offset, 1, b.bytes, out);
    }
    return fclose(out) == 0 ? 0 : 2;
}
