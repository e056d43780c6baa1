// What devices of compute capability 9.0 have beyond base.cu, for programs compiled for sm_90a and for nothing else: copies
// of boxes of a matrix in the background, barriers in shared memory that count the bytes of such copies, and products of a
// warpgroup - four warps, the first a multiple of four - whose factors lie in shared memory.
//
// On the host emulation/hopper.h supplies the twins.

// A matrix of bytes as boxes are cut out of it: what `cuTensorMapEncodeTiled` makes of a `TensorMap` of src/program.rs.
struct alignas(128) TensorMap {
    u64 words[16];
};

#ifndef __CUDACC_RTC__
#include "hopper.h"
#else

// A parameter of a kernel that copies refer to where it lies.
#define MAP const __grid_constant__ TensorMap

// --- barriers in shared memory ---
//
// A phase ends when all have arrived and all expected bytes are there; phases alternate between parities 0 and 1.

DEVICE void init_barrier(u64 *barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// After all barriers are made, by the thread that made them; a barrier of the block must follow.
DEVICE void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and makes the phase wait for so many bytes.
DEVICE void arrive_expecting(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits for the end of the phase of a parity. No phase has ended before the first, which counts as the end of one of parity 1.
DEVICE void wait_barrier(u64 *barrier, u32 parity) {
    u32 ended;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(ended)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!ended);
}

// Copies a box whose first byte is at a row and a column; its bytes count at the barrier, those beyond the matrix, which
// become zeros, too. Rows of 128 bytes, eight to 1024: piece c of 16 bytes of row r lies at c ^ (r & 7).
DEVICE void copy_box(void *to, const TensorMap &map, u64 *barrier, i32 column, i32 row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                     shared_address(to)),
                 "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row)
                 : "memory");
}

// --- registers of a warpgroup ---

// All threads of the warpgroup keep so many registers each, a multiple of 8, and leave the others to the block ...
template <int count> DEVICE void keep_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
// ... from which another takes, waiting until there are enough.
template <int count> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }

// --- products of a warpgroup ---

// Names a factor to `multiply_s8`: rows of 128 bytes of k as `copy_box` lays them down from a multiple of 1024 on. The next
// 32 bytes of k are 2 more. Bits 0..13: address, 32..45: distance of eight rows, both in units of 16; 62..63: 1, the order
// of pieces. The distance in 16..29 has no meaning with this order.
DEVICE u64 factor_of(const void *rows) {
    return (u64)(shared_address(rows) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
// Must come between what else the threads do with `d` and a product that adds to it.
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products.
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

#define D1(i) "+r"(d[i])
#define D4(i) D1(i), D1(i + 1), D1(i + 2), D1(i + 3)
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D64(i) D16(i), D16(i + 16), D16(i + 32), D16(i + 48)

// d = a b, or d += a b, for 64 rows of a, 256 columns of b and 32 bytes of k, in the background. With g = lane >> 2 and
// t = lane & 3, d[i] of warp w is row 16w + g + 8 (i >> 1 & 1), column 8 (i >> 2) + 2t + (i & 1).
DEVICE void multiply_s8(i32 (&d)[128], u64 a, u64 b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %130, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, %128, %129, p;\n\t}"
                 : D64(0), D64(64)
                 : "l"(a), "l"(b), "r"((u32)add)
                 : "memory");
}
// Waits until at most `left` groups are under way. `d` is named so that nothing that uses it moves across.
template <int left> DEVICE void wait_products(i32 (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
    for (int i = 0; i < 128; i++) asm volatile("" : "+r"(d[i])::"memory");
}

#endif
