#pragma once

#include <cstdint>

#include "backend/cuda/attention_decode.cuh"

/// Decode attention by a cluster of thread blocks a context, or by one block; part of attention_decode.cuh.
///
/// Block r of a cluster of n takes the tiles r, r + n, … of its context: its first one does not depend on the length, so the
/// block numbers are asked for together with the length, and neither waits for a barrier. Each block hands its part to the
/// last one, straight into its shared memory, and leaves; the bytes count up a barrier there.
namespace baton::backend::cuda {

template <Elem E, int D, int WARPS, int STAGES, int SIZE>
struct ClusterDecode {
    using Work = Decode<E, D, WARPS, STAGES, SIZE>;
    using Shape = typename Work::Shape;
    static constexpr int kBlocksMax = 8;

    const Work& work;
    DecodeWalk now{};  ///< this block's first tile
    int rank = 0;
    DecodeWalk ahead{};            ///< the next tile to be fetched
    int ids[Work::kLookups] = {};  ///< its block numbers

    __device__ __forceinline__ uint32_t room() const {
        return dev::shared_address(work.shared) + static_cast<uint32_t>(Shape::kClusterAt);
    }
    /// Makes the barrier and says that this block has started.
    __device__ __forceinline__ void announce() {
        if (work.p.cluster == 1)
            return;
        rank = static_cast<int>(blockIdx.x) & (work.p.cluster - 1);
        if (threadIdx.x == 0)
            dev::cluster_barrier_init(room());
        __syncwarp();
        dev::cluster_arrive();
    }

    /// Starts the copies, unless the lengths are too uneven: if the longest has more than half again an even share and two tiles more.
    /// Blocks that end sooner leave the others more of the bandwidth. All warps find the same.
    __device__ __forceinline__ bool takes() {
        const auto& p = work.p;
        constexpr int kLanesMost = 4;  // lengths a lane
        if (p.sequences > 32 * kLanesMost)
            return false;
        const int context = static_cast<int>(blockIdx.x) / p.cluster;  // a power of two
        now.sequence = context / p.kv_heads;
        now.head = context - now.sequence * p.kv_heads;
        now.tile = rank;
        now.length = max(0, __ldg(p.kv_len + now.sequence));
        int lengths[kLanesMost];
#pragma unroll
        for (int k = 0; k < kLanesMost; ++k)
            lengths[k] = work.lane + 32 * k < p.sequences ? __ldg(p.kv_len + work.lane + 32 * k) : 0;
        const int32_t* table = p.blocks + static_cast<int64_t>(now.sequence) * p.blocks_stride;
#pragma unroll
        for (int j = 0; j < Work::kLookups; ++j)
            ids[j] = __ldg(table + min(token_of(j) >> p.block_shift, p.blocks_stride - 1));
        now.tiles = (now.length + Shape::kTile - 1) / Shape::kTile;
#pragma unroll
        for (int j = 0; j < Work::kLookups; ++j)
            ids[j] = token_of(j) < now.length - (work.fused ? 1 : 0) ? ids[j] : -1;
        int total = 0;
        int most = 0;
#pragma unroll
        for (int k = 0; k < kLanesMost; ++k) {
            const int tiles = (max(0, lengths[k]) + Shape::kTile - 1) / Shape::kTile;
            total += tiles;
            most = max(most, tiles);
        }
        total = __reduce_add_sync(0xffffffffu, total) * p.kv_heads;
        most = (__reduce_max_sync(0xffffffffu, most) + p.cluster - 1) / p.cluster;
        if ((2 * most - 5) * static_cast<int>(gridDim.x) >= 3 * total)
            return false;
        ahead = now;
        fetch_next(0);
        return true;
    }

    __device__ __forceinline__ void run() {
        const auto& p = work.p;
        const int count = tiles_here();
#pragma unroll
        for (int i = 1; i < STAGES - 1; ++i)
            fetch_next(i);
        typename Work::Constants constants;
        if (count > 0)
            work.load_constants(constants, now);
        work.clear_missing_heads();
        if (p.early)
            dev::wait_for_earlier();
        dev::launch_dependents();
        if (now.length == 0 && rank == 0)
            for (int i = 2 * static_cast<int>(threadIdx.x); i < p.group * D; i += 2 * Shape::kThreads)
                work.put(now.sequence, now.head, i, float2{}, 1.0f);

        int last_stage = 0;
        DecodeState<D> state;
        if (count > 0) {
            uint32_t q[D / 16][2];
            work.begin(now, (now.tiles - 1) % p.cluster == rank, constants, q);
            state.clear();
            for (int i = 0; i < count; ++i) {
                dev::copy_wait<STAGES - 2>();
                __syncwarp();  // all lanes' copies are there, and all have left the stage that is filled next
                fetch_next(i + STAGES - 1);
                last_stage = i % STAGES;
                work.add_tile(state, q, now, last_stage, constants.slot);
                now.tile += p.cluster;
            }
            work.lay_out(state, last_stage);
        }
        if (p.cluster > 1)
            dev::cluster_wait();  // all have started: their shared memory may be written
        hand_in(count > 0, last_stage);
        if (shared_context() && rank == p.cluster - 1)
            join();
    }

  private:
    /// Whether several blocks have a part of the context.
    __device__ __forceinline__ bool shared_context() const { return now.tiles > 1 && work.p.cluster > 1; }
    __device__ __forceinline__ int tiles_here() const {
        return rank < now.tiles ? (now.tiles - rank + work.p.cluster - 1) / work.p.cluster : 0;
    }
    /// Starts the copy of this block's i-th tile, if there is one.
    __device__ __forceinline__ void fetch_next(int i) {
        if (ahead.tile < ahead.tiles) {
            work.fetch(ids, ahead, i % STAGES);
            ahead.tile += work.p.cluster;
            if (ahead.tile < ahead.tiles)
                work.look_up(ids, ahead);
        }
        dev::copy_commit();
    }
    __device__ __forceinline__ int token_of(int lookup) const { return rank * Shape::kTile + work.warp * Shape::kSlice + 16 * lookup; }
    /// Bytes of a block's part: marks and outputs.
    __device__ __forceinline__ int part_bytes() const { return work.p.group * (D + 2) * 4; }

    __device__ __forceinline__ void hand_in(bool any, int stage) const {
        const auto& p = work.p;
        const auto last = static_cast<uint32_t>(p.cluster - 1);
        if (shared_context() && rank == p.cluster - 1 && threadIdx.x == 0)
            dev::cluster_barrier_expect(room(), static_cast<uint32_t>(min(now.tiles, p.cluster) * part_bytes()));
        if (!any)
            return;
        const uint32_t barrier = dev::address_in(room(), last);
        const uint32_t marks = barrier + static_cast<uint32_t>(Shape::kClusterMarks + rank * 64);
        const uint32_t part = barrier + static_cast<uint32_t>(Shape::kClusterMarks + p.cluster * 64 + rank * p.group * D * 4);
        for (int i = 2 * static_cast<int>(threadIdx.x); i < p.group * D; i += 2 * Shape::kThreads) {
            float2 mark;
            const float2 out = work.over_warps(i / D, i % D, stage, mark);
            if (!shared_context()) {
                work.put(now.sequence, now.head, i, out, mark.y);
                continue;
            }
            dev::send_in_cluster(part + static_cast<uint32_t>(i * 4), out, barrier);
            if (i % D == 0)
                dev::send_in_cluster(marks + static_cast<uint32_t>(i / D * 8), mark, barrier);
        }
    }

    /// Puts the parts of all blocks together, in the order of the blocks.
    __device__ __forceinline__ void join() const {
        const auto& p = work.p;
        const int parts = min(now.tiles, p.cluster);
        const unsigned char* from = work.shared + Shape::kClusterAt + Shape::kClusterMarks;
        dev::cluster_barrier_wait(room());
        for (int i = 2 * static_cast<int>(threadIdx.x); i < p.group * D; i += 2 * Shape::kThreads) {
            float2 m[kBlocksMax];
            float2 o[kBlocksMax];
            float top = dev::minus_infinity();
#pragma unroll
            for (int r = 0; r < kBlocksMax; ++r) {
                const int at = r < parts ? r : 0;
                m[r] = *reinterpret_cast<const float2*>(from + (at * 8 + i / D) * 8);
                o[r] = *reinterpret_cast<const float2*>(from + p.cluster * 64 + (at * p.group * D + i) * 4);
                top = fmaxf(top, m[r].x);
            }
            float all = 0;
            float2 out{};
#pragma unroll
            for (int r = 0; r < kBlocksMax; ++r) {
                const float factor = r < parts ? dev::exp2_fast(m[r].x - top) : 0.0f;
                all = fmaf(m[r].y, factor, all);
                out.x = fmaf(o[r].x, factor, out.x);
                out.y = fmaf(o[r].y, factor, out.y);
            }
            work.put(now.sequence, now.head, i, out, all);
        }
    }
};

}  // namespace baton::backend::cuda
