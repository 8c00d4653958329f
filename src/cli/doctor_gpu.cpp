// What `baton doctor` says of GPUs. The driver is asked through its own library, so that this works without the CUDA module.
#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "baton/backend/cuda.hpp"
#include "cli/doctor_checks.hpp"

namespace baton::cli {
namespace {

using State = Finding::State;

constexpr int kCudaWanted = 13'000;  // of the module's libraries (docs/ENGINE.md)

template <typename Function>
Function symbol(void* library, const char* name) {
    return library == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(library, name));
}

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

/// The driver's library, opened once; null: there is none.
void* driver() {
    static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library;
}

Finding check_driver() {
    const auto version_of = symbol<int (*)(int*)>(driver(), "cuDriverGetVersion");
    int cuda = 0;
    if (version_of == nullptr || version_of(&cuda) != 0) return {State::kNote, "NVIDIA driver", "none: replicas run on the CPU", ""};
    Finding f{State::kGood, "NVIDIA driver", "for CUDA " + version(cuda), ""};
    std::ifstream in("/proc/driver/nvidia/version");
    std::string line;
    if (std::getline(in, line)) f.found += " (" + line.substr(0, 90) + ")";
    if (cuda < kCudaWanted) f.state = State::kBad, f.advice = "the CUDA module needs a driver for CUDA " + version(kCudaWanted) + " or later: install a newer one";
    return f;
}

/// Which GPUs map each other's memory: between those KV goes by cuda_ipc, between others by NCCL.
Finding check_peers(size_t gpus) {
    const auto init = symbol<int (*)(unsigned)>(driver(), "cuInit");
    const auto can = symbol<int (*)(int*, int, int)>(driver(), "cuDeviceCanAccessPeer");
    if (init == nullptr || can == nullptr || init(0) != 0) return {State::kWarning, "peer access", "not known", ""};
    std::string without;
    for (size_t a = 0; a < gpus; ++a) {
        for (size_t b = 0; b < gpus; ++b) {
            int yes = 0;
            if (a != b && (can(&yes, static_cast<int>(a), static_cast<int>(b)) != 0 || yes == 0)) without += (without.empty() ? "" : ", ") + std::to_string(a) + "-" + std::to_string(b);
        }
    }
    if (without.empty()) return {State::kGood, "peer access", "all GPUs map each other: KV goes by cuda_ipc", ""};
    return {State::kNote, "peer access", "none between " + without + ": KV goes by nccl or tcp there", "faster where `nvidia-smi topo -p2p r` says OK: NVLink, or PCIe without ACS (and without IOMMU)"};
}

Finding check_nccl() {
    void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const auto version_of = symbol<int (*)(int*)>(library, "ncclGetVersion");
    int n = 0;
    if (version_of == nullptr || version_of(&n) != 0)
        return {State::kNote, "NCCL", "not found: KV goes by cuda_ipc or tcp", "install libnccl2, or put its folder into LD_LIBRARY_PATH, where GPUs cannot map each other"};
    return {State::kGood, "NCCL", std::to_string(n / 10'000) + "." + std::to_string(n / 100 % 100) + "." + std::to_string(n % 100), ""};
}

}  // namespace

std::vector<Finding> check_gpus() {
    std::vector<Finding> out{check_driver()};
    const bool has_driver = out.front().state != State::kNote;
    const auto gpus = backend::cuda_devices();
    if (!gpus) {
        out.push_back({has_driver ? State::kBad : State::kNote, "CUDA module", gpus.error().message, has_driver ? "build baton where nvcc is, or run scripts/quickstart, which fetches one" : ""});
        return out;
    }
    for (const backend::CudaDevice& g : *gpus) {
        char memory[64];
        std::snprintf(memory, sizeof memory, "%.1f of %.1f GiB free", static_cast<double>(g.free_bytes) / (1u << 30), static_cast<double>(g.total_bytes) / (1u << 30));
        Finding f{State::kGood, "GPU " + std::to_string(g.index), g.name + ", compute capability " + std::to_string(g.major) + "." + std::to_string(g.minor) + ", " + memory, ""};
        if (g.major < 8) f.state = State::kBad, f.advice = "8.0 or later is needed";
        else if (g.free_bytes < g.total_bytes / 2) f.state = State::kWarning, f.advice = "another program holds its memory: `nvidia-smi` names it";
        out.push_back(std::move(f));
    }
    if (gpus->size() > 1) out.push_back(check_peers(gpus->size()));
    if (!gpus->empty()) out.push_back(check_nccl());
    return out;
}

}  // namespace baton::cli
