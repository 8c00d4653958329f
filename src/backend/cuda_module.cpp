// Opens libbaton_cuda.so when the first call needs it.
#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "backend/cuda_abi.hpp"

namespace baton::backend {

namespace {

namespace fs = std::filesystem;

/// Where the module may lie: beside the program, or where an installation puts it.
std::vector<fs::path> candidates() {
    std::error_code failed;
    const fs::path program = fs::read_symlink("/proc/self/exe", failed);
    if (failed) return {};
    const fs::path folder = program.parent_path();
    return {folder / kCudaModuleFile, folder / ".." / "lib" / "baton" / kCudaModuleFile};
}

Expected<const CudaModule*> open_module() {
    for (const fs::path& path : candidates()) {
        std::error_code failed;
        if (!fs::exists(path, failed)) continue;
        // Never closed: the CUDA runtime inside registers what lives until the process ends.
        void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library == nullptr) {
            const char* reason = dlerror();
            return fail(ErrorCode::kUnavailable,
                        std::string("the CUDA module cannot be loaded: ") + (reason != nullptr ? reason : "unknown reason") +
                            " (libraries of CUDA that are not in a standard folder are found through LD_LIBRARY_PATH)");
        }
        const auto entry = reinterpret_cast<CudaModuleEntry>(dlsym(library, kCudaModuleEntry));
        const CudaModule* module = entry != nullptr ? entry() : nullptr;
        if (module == nullptr || module->abi != kCudaAbi || std::string(module->version) != BATON_VERSION)
            return fail(ErrorCode::kUnavailable, std::string(kCudaModuleFile) + " belongs to another build of baton");
        return module;
    }
    return fail(ErrorCode::kUnavailable,
                std::string("this build of baton has no CUDA module: ") + kCudaModuleFile +
                    " is neither beside the program nor in ../lib/baton (it is built where CMake finds nvcc)");
}

/// The module; looked for again after a failure, so that an error always describes the present.
Expected<const CudaModule*> cuda_module() {
    static const Expected<const CudaModule*> first = open_module();
    return first ? first : open_module();
}

}  // namespace

Expected<std::vector<CudaDevice>> cuda_devices() {
    BATON_TRY_ASSIGN(const CudaModule* module, cuda_module());
    return module->devices();
}

Expected<CudaCalibration> cuda_calibrate(uint32_t device) {
    BATON_TRY_ASSIGN(const CudaModule* module, cuda_module());
    return module->calibrate(device);
}

Expected<void> cuda_open(uint32_t device) {
    BATON_TRY_ASSIGN(const CudaModule* module, cuda_module());
    return module->open(device);
}

Expected<std::unique_ptr<DeviceBackend>> make_cuda_backend(const Plan& plan, const CudaOptions& options) {
    BATON_TRY_ASSIGN(const CudaModule* module, cuda_module());
    return module->make(plan, options);
}

}  // namespace baton::backend
