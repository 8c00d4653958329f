#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "baton/backend/cuda.hpp"

/// What the program and libbaton_cuda.so say to each other. Both are built from one tree; the number and the version make
/// sure of that before anything else of the module is called.
namespace baton::backend {

/// Raised with every change of a type that crosses: CudaModule, DeviceBackend, Plan, CudaOptions.
inline constexpr uint32_t kCudaAbi = 8;
inline constexpr const char* kCudaModuleFile = "libbaton_cuda.so";
inline constexpr const char* kCudaModuleEntry = "baton_cuda_module";

struct CudaModule {
    uint32_t abi = 0;
    const char* version = nullptr;
    Expected<std::vector<CudaDevice>> (*devices)() = nullptr;
    Expected<CudaCalibration> (*calibrate)(uint32_t device) = nullptr;
    Expected<std::unique_ptr<DeviceBackend>> (*make)(const Plan& plan, const CudaOptions& options) = nullptr;
    Expected<void> (*open)(uint32_t device) = nullptr;
};
/// The only symbol the module exports. Its first two members never move.
using CudaModuleEntry = const CudaModule* (*)();

}  // namespace baton::backend
