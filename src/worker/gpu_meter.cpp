#include "worker/gpu_meter.hpp"

#include <dlfcn.h>
#include <sys/prctl.h>

#include <charconv>
#include <chrono>
#include <cstdlib>

namespace baton::worker {
namespace {

/// The few entries of libnvidia-ml that are asked, as nvml.h declares them.
class Nvml {
  public:
    static std::unique_ptr<Nvml> open() {
        void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return nullptr;
        auto out = std::make_unique<Nvml>();
        int (*init)() = nullptr;
        const bool found = find(library, "nvmlInit_v2", init) && find(library, "nvmlDeviceGetHandleByIndex_v2", out->by_index_) &&
                           find(library, "nvmlDeviceGetHandleByUUID", out->by_uuid_) && find(library, "nvmlDeviceGetMemoryInfo", out->memory_) &&
                           find(library, "nvmlDeviceGetUtilizationRates", out->utilization_);
        if (!found || init() != 0) return nullptr;
        return out;  // the library stays open: the driver keeps threads in it
    }

    [[nodiscard]] std::optional<wire::GpuUse> ask(const DriverGpu& gpu, uint32_t index) const {
        void* device = nullptr;
        if ((gpu.uuid.empty() ? by_index_(gpu.number, &device) : by_uuid_(gpu.uuid.c_str(), &device)) != 0) return std::nullopt;
        Memory memory;
        if (memory_(device, &memory) != 0) return std::nullopt;
        Utilization load;
        if (utilization_(device, &load) != 0) load = {};
        return wire::GpuUse{index, memory.used, static_cast<double>(load.gpu) / 100};
    }

  private:
    struct Memory {
        unsigned long long total = 0, free = 0, used = 0;
    };
    struct Utilization {
        unsigned int gpu = 0, memory = 0;
    };
    template <class F>
    static bool find(void* library, const char* name, F& out) {
        out = reinterpret_cast<F>(::dlsym(library, name));
        return out != nullptr;
    }
    int (*by_index_)(unsigned int, void**) = nullptr;
    int (*by_uuid_)(const char*, void**) = nullptr;
    int (*memory_)(void*, Memory*) = nullptr;
    int (*utilization_)(void*, Utilization*) = nullptr;
};

}  // namespace

std::optional<DriverGpu> driver_gpu(const char* visible_devices, uint32_t index) {
    std::string_view rest = visible_devices == nullptr ? "" : visible_devices;
    if (rest.empty()) return DriverGpu{index, ""};
    for (;; --index) {
        const size_t comma = rest.find(',');
        const std::string_view name = rest.substr(0, comma);
        uint32_t number = 0;
        const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
        const bool numeric = error == std::errc() && end == name.data() + name.size();
        // CUDA stops at the first entry that names no GPU.
        if (!numeric && !name.starts_with("GPU-")) return std::nullopt;
        if (index == 0) return numeric ? DriverGpu{number, ""} : DriverGpu{0, std::string(name)};
        if (comma == std::string_view::npos) return std::nullopt;
        rest.remove_prefix(comma + 1);
    }
}

GpuMeter::GpuMeter(const std::vector<wire::Gpu>& gpus, int64_t every_ms) : shared_(std::make_shared<Shared>()) {
    if (gpus.empty()) return;
    std::vector<std::pair<uint32_t, DriverGpu>> asked;
    for (const wire::Gpu& gpu : gpus)
        if (auto which = driver_gpu(std::getenv("CUDA_VISIBLE_DEVICES"), gpu.index)) asked.emplace_back(gpu.index, std::move(*which));
    // Detached: one that hangs in the driver must not hold the end of the process up. It owns all it touches.
    std::thread([shared = shared_, asked = std::move(asked), every_ms] {
        ::prctl(PR_SET_NAME, "baton-gpus");
        const auto nvml = Nvml::open();
        if (!nvml) return;
        std::unique_lock lock(shared->mutex);
        while (!shared->stop) {
            lock.unlock();
            std::vector<wire::GpuUse> now;
            for (const auto& [index, which] : asked)
                if (auto use = nvml->ask(which, index)) now.push_back(*use);
            lock.lock();
            shared->latest = std::move(now);
            shared->changed.wait_for(lock, std::chrono::milliseconds(every_ms), [&] { return shared->stop; });
        }
    }).detach();
}

GpuMeter::~GpuMeter() {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
}

std::vector<wire::GpuUse> GpuMeter::latest() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->latest;
}

}  // namespace baton::worker
