#pragma once

#include <string_view>

#include "text/jinja_value.hpp"

namespace baton::text::jinja {

class Vm;
struct Args;

/// A filter, test or global function: `self` is the value before the bar (unused by functions).
using Builtin = Value (*)(Vm& vm, const Value& self, Args& args);
/// The filter of that name, or null.
[[nodiscard]] Builtin find_filter(std::string_view name);
/// The test of that name (its result is a bool), or null.
[[nodiscard]] Builtin find_test(std::string_view name);
/// The global function of that name, or null.
[[nodiscard]] Builtin find_function(std::string_view name);

/// What a method name means on an object of this kind.
enum class MethodUse : uint8_t { kNone, kCallable, kForbidden };
[[nodiscard]] MethodUse find_method(Kind kind, std::string_view name);
/// Calls `object.name(args)`.
[[nodiscard]] Value call_method(Vm& vm, const Value& object, std::string_view name, Args& args);

}  // namespace baton::text::jinja
