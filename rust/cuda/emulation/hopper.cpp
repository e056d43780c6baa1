// Barriers, copies of boxes and products of warpgroups: what a Hopper does beside its threads.
//
// Copies land as late as they can, the last first, or (backwards) at once. Products are computed when somebody waits for
// them, and must find then the bytes that lay there when they were asked for.

#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "fibres.h"

namespace emulator {

namespace {

const u64 MARK = 0x6261727269657221; // in shared memory, where a barrier is
const int ROWS = 64, COLUMNS = 256, DEPTH = 32;

struct Barrier {
    u32 count, pending, phase;
    i64 bytes;
    bool published;
};
struct Box {
    u8 *to;
    Matrix from;
    u64 *barrier;
    i64 column, row;
};
struct Factors {
    i8 a[ROWS][DEPTH], b[COLUMNS][DEPTH];
};
struct Pending {
    i32 *d[128];
    u64 a, b;
    bool add;
    Factors asked;
};
struct Group {
    std::vector<Pending> open;
    std::deque<std::vector<Pending>> committed;
    bool begun;
    u32 registers, wanted;
};

std::map<u64 *, Barrier> barriers;
std::vector<Box> boxes;
Group groups[8];
u64 pool; // registers that warpgroups have left to the block

Group &own_group() { return groups[thread_number() / 128]; }

Barrier &barrier_at(u64 *at) {
    auto found = barriers.find(at);
    if (found == barriers.end() || *at != MARK) fail("no barrier is here");
    return found->second;
}

void settle(Barrier &b) {
    if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.count;
}

// Bits 7 to 9 of an address are added to bits 4 to 6.
u64 swizzled(u64 address) { return address ^ (address >> 7 & 7) << 4; }

u8 *in_shared(u64 address) {
    if (address < SHARED_BEGIN || address >= SHARED_BEGIN + shared_bytes()) fail("an address beyond shared memory");
    return shared_begin() + (address - SHARED_BEGIN);
}

void land(const Box &box) {
    const Matrix &m = box.from;
    const u64 start = shared_address(box.to);
    for (u64 r = 0; r < m.box_rows; r++)
        for (u64 c = 0; c < m.box_columns; c++) {
            i64 row = box.row + (i64)r, column = box.column + (i64)c;
            bool inside = row >= 0 && row < (i64)m.rows && column >= 0 && column < (i64)m.columns;
            *in_shared(swizzled(start + r * m.box_columns + c)) = inside ? m.address[row * (i64)m.pitch + column] : 0;
        }
    Barrier &b = barrier_at(box.barrier);
    b.bytes -= (i64)(m.box_rows * m.box_columns);
    settle(b);
}

// The bytes that a description names, of `rows` rows.
void read_factor(i8 (*to)[DEPTH], int rows, u64 description) {
    if (description >> 62 != 1) fail("a factor whose pieces are not in the order of 128 bytes");
    if (description & 0x3fff'c000'c000'c000) fail("a factor with bits that have no meaning, or an offset");
    u64 start = (description & 0x3fff) << 4, eight = (description >> 32 & 0x3fff) << 4;
    if ((start & ~127ull) % 1024) fail("a factor that begins at no multiple of 1024");
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < DEPTH; k++) to[r][k] = (i8)*in_shared(swizzled(start + r / 8 * eight + r % 8 * 128 + k));
}

void read_factors(Factors &to, u64 a, u64 b) {
    read_factor(to.a, ROWS, a);
    read_factor(to.b, COLUMNS, b);
}

__attribute__((optimize("O3"), no_sanitize("address", "undefined"))) void add_products(i32 (*sums)[COLUMNS], const Factors &f) {
    static short a[ROWS][DEPTH], b[COLUMNS][DEPTH];
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < DEPTH; k++) a[r][k] = f.a[r][k];
    for (int c = 0; c < COLUMNS; c++)
        for (int k = 0; k < DEPTH; k++) b[c][k] = f.b[c][k];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            i32 sum = 0;
            for (int k = 0; k < DEPTH; k++) sum += a[r][k] * b[c][k];
            sums[r][c] = (i32)((u32)sums[r][c] + (u32)sum);
        }
}

void compute(const Pending &p) {
    static Factors found;
    static i32 sums[ROWS][COLUMNS];
    read_factors(found, p.a, p.b);
    if (memcmp(&found, &p.asked, sizeof found)) fail("a factor changed while its product was under way");
    memset(sums, 0, sizeof sums);
    add_products(sums, found);
    for (int thread = 0; thread < 128; thread++) {
        int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
        for (int i = 0; i < 128; i++) {
            i32 sum = sums[16 * warp + g + 8 * (i / 2 % 2)][8 * (i / 4) + 2 * t + i % 2];
            p.d[thread][i] = p.add ? (i32)((u32)p.d[thread][i] + (u32)sum) : sum;
        }
    }
}

struct Asked {
    i32 *d;
    u64 a, b;
    bool add;
};

} // namespace

u32 shared_address(const void *p) { return (u32)((const u8 *)p - shared_begin() + SHARED_BEGIN); }

void begin_background() {
    barriers.clear();
    pool = 0;
    // What a block of so many threads begins with, all registers in use.
    for (Group &group : groups) group = Group{{}, {}, false, 65536 / thread_count() / 8 * 8, 0};
}

void end_background() {
    if (!boxes.empty()) fail("a copy that nobody waited for");
    for (const Group &group : groups)
        if (!group.open.empty() || !group.committed.empty()) fail("a product that nobody waited for");
}

bool advance_background() {
    if (boxes.empty()) return false;
    Box box = boxes.back();
    boxes.pop_back();
    land(box);
    return true;
}

void init_barrier(u64 *at, u32 count) {
    if (count == 0 || count >= 1 << 20) fail("a barrier that waits for none, or for too many");
    in_shared(shared_address(aligned<u64>(at, 8)));
    if (barriers.count(at)) fail("a barrier is here already");
    *at = MARK;
    barriers[at] = Barrier{count, count, 0, 0, false};
}

void publish_barriers() {
    for (auto &each : barriers) each.second.published = true;
}

void arrive(u64 *at, u32 bytes) {
    Barrier &b = barrier_at(at);
    if (b.pending == 0) fail("more arrivals than a barrier waits for");
    b.bytes += bytes;
    if (b.bytes >= 1 << 20) fail("more bytes than a barrier counts");
    b.pending--;
    settle(b);
}

void wait_barrier(u64 *at, u32 parity) {
    struct Own {
        u64 *at;
        u32 parity;
    } own{at, parity};
    wait_until([](void *p) { return barrier_at(((Own *)p)->at).phase != ((Own *)p)->parity; }, &own);
}

void copy_box(void *to, const TensorMap &map, u64 *barrier, i32 column, i32 row) {
    Matrix from;
    memcpy(&from, &map, sizeof from);
    if (shared_address(to) % 1024) fail("a copy to no multiple of 1024");
    if (!barrier_at(barrier).published) fail("a copy that counts at a barrier it may not see");
    boxes.push_back(Box{(u8 *)to, from, barrier, column, row});
    if (is_backwards()) advance_background();
}

void keep_registers(u32 count) {
    together_group(
        [](void **own) {
            Group &group = own_group();
            const u32 count = *(u32 *)own[0];
            if (count > group.registers) fail("a warpgroup keeps more registers than it has");
            pool += 128 * (group.registers - count);
            group.registers = count;
        },
        &count);
}

void take_registers(u32 count) {
    together_group([](void **own) { own_group().wanted = *(u32 *)own[0]; }, &count);
    Group *group = &own_group();
    if (count < group->registers) fail("a warpgroup takes fewer registers than it has");
    wait_until(
        [](void *p) {
            Group &group = *(Group *)p;
            const u64 more = 128 * (group.wanted - group.registers);
            if (pool < more) return false;
            pool -= more;
            group.registers = group.wanted;
            return true;
        },
        group);
}

void begin_products() {
    together_group([](void **) { own_group().begun = true; }, nullptr);
}

void multiply(i32 *d, u64 a, u64 b, bool add) {
    Asked asked{d, a, b, add};
    together_group(
        [](void **own) {
            Group &group = own_group();
            if (!group.begun) fail("a product before which nothing was begun");
            const Asked &first = *(Asked *)own[0];
            Pending p{{}, first.a, first.b, first.add, {}};
            for (int i = 0; i < 128; i++) {
                const Asked &asked = *(Asked *)own[i];
                if (asked.a != first.a || asked.b != first.b || asked.add != first.add) fail("threads that ask for different products");
                p.d[i] = asked.d;
            }
            read_factors(p.asked, p.a, p.b);
            group.open.push_back(p);
        },
        &asked);
}

void commit_products() {
    together_group(
        [](void **) {
            Group &group = own_group();
            group.committed.push_back(group.open);
            group.open.clear();
            group.begun = false;
        },
        nullptr);
}

void wait_products(int left) {
    together_group(
        [](void **own) {
            Group &group = own_group();
            while ((int)group.committed.size() > *(int *)own[0]) {
                for (const Pending &p : group.committed.front()) compute(p);
                group.committed.pop_front();
            }
        },
        &left);
}

} // namespace emulator
