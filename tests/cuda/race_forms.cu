// What racecheck sees of the ways in which warps and blocks hand each other memory. Built on request (target race_forms); run as
//   compute-sanitizer --tool racecheck race_forms FORM right|wrong
// for each FORM that it lists when called with none. Right ones are ordered, wrong ones lack a wait; the verdicts are in docs/PERFORMANCE.md.
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "backend/cuda/attention_device.cuh"
#include "backend/cuda/gemm_bring.cuh"
#include "backend/cuda/gemm_ring.cuh"
#include "backend/cuda/tensor_map.hpp"

namespace baton::backend::cuda {
namespace {

/// 128 threads, in blocks of their own or clusters of two.
#define FORM(name) \
    template <bool RIGHT> \
    __global__ void name([[maybe_unused]] float* out, [[maybe_unused]] const float* in, [[maybe_unused]] const __grid_constant__ CUtensorMap map)
#define PLACES \
    __shared__ alignas(1024) float s[2048]; \
    __shared__ alignas(16) uint64_t barrier_at; \
    [[maybe_unused]] const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32; \
    [[maybe_unused]] const uint32_t at = dev::shared_address(s), barrier = dev::shared_address(&barrier_at), other = blockIdx.x ^ 1

__device__ void make(uint32_t barrier, int count) {
    if (threadIdx.x == 0) {
        dev::barrier_init(barrier, count);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        dev::fence_for_products();
    }
    __syncthreads();
}
__device__ void start_together() {
    dev::cluster_arrive();
    dev::cluster_wait();
}

FORM(named) {  // a named barrier of two warps
    PLACES;
    if (warp == 0) s[lane] = 1;
    if (warp < 2 && RIGHT) dev::named_sync(1, 64);
    if (warp == 1) out[lane] = s[31 - lane];
}
FORM(named_chain) {  // from the first warp to the second to the third
    PLACES;
    if (warp == 0) s[lane] = 1, dev::named_sync(1, 64);
    if (warp == 1) dev::named_sync(1, 64);
    if ((warp == 1 || warp == 2) && RIGHT) dev::named_sync(2, 64);
    if (warp == 2) out[lane] = s[31 - lane];
}
FORM(barrier_all) {  // a barrier in shared memory at which each writer arrives
    PLACES;
    make(barrier, 32);
    if (warp == 0) s[lane] = 1, dev::barrier_arrive(barrier);
    if (warp == 1) {
        if (RIGHT) dev::barrier_wait(barrier, 0);
        out[lane] = s[31 - lane];
    }
}
FORM(barrier_one) {  // at which one arrives for its warp
    PLACES;
    make(barrier, 1);
    if (warp == 0) {
        s[lane] = 1;
        __syncwarp();
        if (lane == 0) dev::barrier_arrive(barrier);
    }
    if (warp == 1) {
        if (RIGHT) dev::barrier_wait(barrier, 0);
        out[lane] = s[31 - lane];
    }
}
FORM(bytes_in) {  // bytes from memory by the copy engine
    PLACES;
    make(barrier, 1);
    if (thread == 0) dev::barrier_expect(barrier, 512), gemm::bring(at, in, 512, barrier);
    __syncwarp();
    if (RIGHT) dev::barrier_wait(barrier, 0);
    out[thread] = s[thread];
}
FORM(tensor_in) {  // a box of a tensor by the copy engine
    PLACES;
    make(barrier, 1);
    if (thread == 0) dev::barrier_expect(barrier, 1024), gemm::ring_copy(at, &map, 0, 0, barrier);
    __syncwarp();
    if (RIGHT) dev::barrier_wait(barrier, 0);
    out[thread] = s[thread];
}
FORM(bytes_out) {  // to memory by the copy engine, and then the place is written anew
    PLACES;
    s[thread] = 1;
    dev::fence_for_products();
    __syncthreads();
    if (thread == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;\ncp.async.bulk.commit_group;" ::"l"(out), "r"(at) : "memory");
        if (RIGHT) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncthreads();
    s[thread] = 2;
    if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
FORM(products) {  // operands of a warpgroup's product
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    PLACES;
    for (int i = 0; i < 4; ++i) reinterpret_cast<uint4*>(s)[thread + i * 128] = {};
    dev::fence_for_products();
    if (RIGHT) __syncthreads();
    float sums[4] = {};
    dev::products_fence();
    dev::Product<__nv_bfloat16, 8>::from_shared(sums, dev::operand(at), dev::operand(at));
    dev::products_commit();
    dev::products_wait<0>();
    dev::pin(sums);
    out[thread] = sums[0] + sums[1] + sums[2] + sums[3];
#endif
}
FORM(cluster_store) {  // into the other block, and a barrier of the cluster
    PLACES;
    start_together();
    dev::store_in_cluster(dev::address_in(at + thread * 4, other), 1);
    if (RIGHT) dev::cluster_sync();
    out[thread] = s[127 - thread];
    dev::cluster_sync();
}
FORM(cluster_send) {  // by stores that a barrier there counts
    PLACES;
    make(barrier, 1);
    if (thread == 0) dev::barrier_expect(barrier, 1024);
    start_together();
    dev::send_in_cluster(dev::address_in(at + thread * 8, other), float2{}, dev::address_in(barrier, other));
    if (RIGHT) dev::cluster_barrier_wait(barrier);
    out[thread] = s[255 - thread];
    dev::cluster_sync();
}
FORM(cluster_copy) {  // by the copy engine
    PLACES;
    make(barrier, 1);
    if (thread == 0) dev::barrier_expect(barrier, 512);
    s[thread] = 1;
    dev::fence_for_products();
    __syncthreads();
    start_together();
    if (thread == 0) gemm::ring_send(dev::address_in(at + 4096, other), at, 512, dev::address_in(barrier, other));
    __syncwarp();
    if (RIGHT) dev::cluster_barrier_wait(barrier);
    out[thread] = s[1024 + 127 - thread];
    dev::cluster_sync();
}
/// Right in both: the barrier of a cluster is each warp's own affair. Under racecheck a warp passes it when all of its block are at it.
FORM(cluster_order) {
    PLACES;
    make(barrier, 1);
    dev::cluster_arrive();
    if (warp != 0) {
        dev::cluster_wait();
        if (thread == 32) dev::barrier_arrive(barrier);
    } else if (RIGHT) {
        dev::barrier_wait(barrier, 0);
        dev::cluster_wait();
    } else {
        dev::cluster_wait();
        dev::barrier_wait(barrier, 0);
    }
}

struct Form {
    void (*right)(float*, const float*, CUtensorMap);
    void (*wrong)(float*, const float*, CUtensorMap);
};
#define ROW(name) {#name, {name<true>, name<false>}}
const std::map<std::string, Form> kForms = {ROW(named), ROW(named_chain), ROW(barrier_all), ROW(barrier_one), ROW(bytes_in), ROW(tensor_in), ROW(bytes_out),
                                            ROW(products), ROW(cluster_store), ROW(cluster_send), ROW(cluster_copy), ROW(cluster_order)};

int run(const char* name, bool right) {
    const Form& form = kForms.at(name);
    float* out = nullptr;
    float* in = nullptr;
    CUtensorMap map;
    if (cudaMalloc(&out, 4096) != cudaSuccess || cudaMalloc(&in, 4096) != cudaSuccess || !describe_rows(map, Elem::kBF16, in, 32, 64, 8)) return 1;
    const unsigned blocks = std::strncmp(name, "cluster", 7) == 0 ? 2 : 1;
    cudaError_t error = start({}, right ? form.right : form.wrong, blocks, 128, 0, blocks, out, in, map);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    std::printf("%s\n", cudaGetErrorString(error));
    return error == cudaSuccess ? 0 : 1;
}

}  // namespace
}  // namespace baton::backend::cuda

int main(int argc, char** argv) {
    if (argc == 3) return baton::backend::cuda::run(argv[1], std::strcmp(argv[2], "right") == 0);
    for (const auto& [name, form] : baton::backend::cuda::kForms) std::printf("%s\n", name.c_str());
    return 0;
}
