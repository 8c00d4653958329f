#pragma once

#include "text/jinja_vm.hpp"

namespace baton::text::jinja {

/// Statements and expressions nested while running. A frame is well under 1 KiB, so this stays
/// inside 2 MiB of stack.
inline constexpr int kEvalDepthMax = 1500;

struct Vm::Depth {
    explicit Depth(Vm& v) : vm(v) {
        if (++vm.depth_ > kEvalDepthMax) vm.error("nested too deeply while rendering");
    }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    ~Depth() { --vm.depth_; }
    Vm& vm;
};

}  // namespace baton::text::jinja
