#include "backend/cuda/device_info.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "backend/cuda/check.hpp"

namespace baton::backend::cuda {

namespace {

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string uuid_text(const cudaUUID_t& uuid) {
    std::string out = "GPU-";
    for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
        std::array<char, 3> hex{};
        std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
        if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
        out += hex.data();
    }
    return out;
}

/// The driver's management library. Asked for free memory, because CUDA itself would take half a GiB of each GPU to say it.
class Nvml {
  public:
    Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
        if (library_ == nullptr) return;
        const auto init = symbol<int (*)()>("nvmlInit_v2");
        find_ = symbol<int (*)(const char*, void**)>("nvmlDeviceGetHandleByUUID");
        memory_ = symbol<int (*)(void*, Memory*)>("nvmlDeviceGetMemoryInfo");
        good_ = init != nullptr && find_ != nullptr && memory_ != nullptr && init() == 0;
    }
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;
    ~Nvml() {
        if (good_)
            if (const auto end = symbol<int (*)()>("nvmlShutdown"); end != nullptr) static_cast<void>(end());
        if (library_ != nullptr) dlclose(library_);
    }
    /// 0 where it is not known.
    [[nodiscard]] uint64_t free_bytes(const std::string& uuid) const {
        void* device = nullptr;
        Memory memory{};
        if (!good_ || find_(uuid.c_str(), &device) != 0 || memory_(device, &memory) != 0) return 0;
        return memory.free;
    }

  private:
    struct Memory {
        unsigned long long total, free, used;
    };
    template <class F>
    [[nodiscard]] F symbol(const char* name) const {
        return reinterpret_cast<F>(dlsym(library_, name));
    }
    void* library_ = nullptr;
    bool good_ = false;
    int (*find_)(const char*, void**) = nullptr;
    int (*memory_)(void*, Memory*) = nullptr;
};

/// The CUDA version the driver knows, and what is wrong with it where that cannot be told. The runtime is asked first; it says
/// nothing where it could not start.
std::pair<int, std::string> driver_version() {
    int version = 0;
    if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) return {version, ""};
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
        const char* reason = dlerror();
        return {0, reason != nullptr ? reason : "libcuda.so.1 cannot be loaded"};
    }
    const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
    const bool told = ask != nullptr && ask(&version) == 0;
    dlclose(library);
    if (told) return {version, ""};
    return {0, "libcuda.so.1 does not say its version"};
}

Expected<int> device_count() {
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) return count;
    if (status == cudaSuccess) status = cudaErrorNoDevice;
    static_cast<void>(cudaGetLastError());
    const auto [driver, problem] = driver_version();
    return fail(no_devices(status, driver, problem));
}

}  // namespace

Error no_devices(cudaError_t status, int driver, const std::string& problem) {
    const std::string text = cudaGetErrorString(status);
    if (status == cudaErrorInsufficientDriver && driver == 0)
        return {ErrorCode::kUnavailable, "no NVIDIA driver is installed, or not one that works (" + (problem.empty() ? text : problem) + ")", ""};
    if (status == cudaErrorInsufficientDriver)
        return {ErrorCode::kUnavailable, "the NVIDIA driver knows CUDA " + version_text(driver) + ", this build needs " +
                                                 version_text(CUDART_VERSION) + " (" + text + ")", ""};
    if (status == cudaErrorNoDevice) return {ErrorCode::kUnavailable, "no GPU: " + text, ""};
    return {ErrorCode::kUnavailable, "the GPUs cannot be listed: " + text, ""};
}

Expected<std::vector<CudaDevice>> list_devices() {
    BATON_TRY_ASSIGN(const int count, device_count());
    const Nvml nvml;
    std::vector<CudaDevice> devices;
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp properties{};
        BATON_CUDA_TRY(cudaGetDeviceProperties(&properties, i), "the properties of GPU " + std::to_string(i));
        CudaDevice device;
        device.index = static_cast<uint32_t>(i);
        device.name = properties.name;
        device.uuid = uuid_text(properties.uuid);
        device.major = static_cast<uint32_t>(properties.major);
        device.minor = static_cast<uint32_t>(properties.minor);
        device.multiprocessors = static_cast<uint32_t>(properties.multiProcessorCount);
        device.total_bytes = properties.totalGlobalMem;
        device.free_bytes = nvml.free_bytes(device.uuid);
        devices.push_back(std::move(device));
    }
    return devices;
}

Expected<void> use_device(uint32_t index) {
    BATON_TRY_ASSIGN(const int count, device_count());
    if (index >= static_cast<uint32_t>(count)) {
        std::string there;
        for (int i = 0; i < count; ++i) {
            cudaDeviceProp properties{};
            static_cast<void>(cudaGetDeviceProperties(&properties, i));
            there += (i > 0 ? ", " : "") + std::to_string(i) + " " + properties.name;
        }
        return fail(ErrorCode::kInvalidArgument, "there is no GPU " + std::to_string(index) + "; there is: " + there, "gpu");
    }
    BATON_CUDA_TRY(cudaSetDevice(static_cast<int>(index)), "GPU " + std::to_string(index));
    return {};
}

}  // namespace baton::backend::cuda
