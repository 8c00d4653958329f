#include <array>
#include <mutex>

#include "backend/cuda/attention_device.cuh"

namespace baton::backend::cuda {
namespace {

constexpr int kDevicesMax = 64;

/// Its attributes tell what this module's code was compiled for.
__global__ void probe_kernel() {}

DeviceTraits ask(int index) {
    DeviceTraits d;
    d.index = index;
    const auto get = [&](int& value, cudaDeviceAttr what) {
        if (d.error == cudaSuccess)
            d.error = cudaDeviceGetAttribute(&value, what, index);
    };
    get(d.major, cudaDevAttrComputeCapabilityMajor);
    get(d.minor, cudaDevAttrComputeCapabilityMinor);
    get(d.multiprocessors, cudaDevAttrMultiProcessorCount);
    get(d.shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    cudaFuncAttributes attributes{};
    if (d.error == cudaSuccess)
        d.error = cudaFuncGetAttributes(&attributes, probe_kernel);
    d.compiled = attributes.ptxVersion;
    return d;
}

}  // namespace

const DeviceTraits& current_device() {
    static std::array<std::once_flag, kDevicesMax> asked;
    static std::array<DeviceTraits, kDevicesMax> devices;
    static const DeviceTraits none{cudaErrorInvalidDevice};
    int index = 0;
    if (cudaGetDevice(&index) != cudaSuccess || index < 0 || index >= kDevicesMax)
        return none;
    const auto i = static_cast<size_t>(index);
    std::call_once(asked[i], [&] { devices[i] = ask(index); });
    return devices[i];
}

}  // namespace baton::backend::cuda
