#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "baton/base/error.hpp"
#include "baton/wire/messages.hpp"

/// Constrained decoding: what a text must be, as a program that a matcher runs. docs/decisions/010 says why it is built so.
namespace baton::grammar {

/// Bounds on what is compiled. Beyond them a constraint is refused, never cut.
struct Limits {
    size_t text_bytes = 256 * 1024;   ///< of a constraint
    uint32_t nodes = 200'000;         ///< of the expression tree
    uint32_t states = 400'000;        ///< of the automaton
    uint32_t rules = 20'000;
    uint32_t nesting = 128;           ///< of parentheses, schemas, values
    uint32_t frames = 200;            ///< of the stack while matching: bounds the nesting of an answer
};

struct ProgramData;

/// A compiled constraint. Immutable; any thread; knows bytes and nothing of tokens.
class Program {
  public:
    explicit Program(std::shared_ptr<const ProgramData> data);
    [[nodiscard]] const ProgramData& data() const { return *data_; }
    /// Bytes of memory it holds.
    [[nodiscard]] size_t bytes() const;

  private:
    std::shared_ptr<const ProgramData> data_;
};

/// Compiles a constraint other than kNone. Takes time and memory in proportion to the text and the limits. kInvalidArgument
/// for a text that is none of its kind or that no answer satisfies, kUnsupported for a feature that is not built; messages name
/// the place ("schema at #/properties/a: uniqueItems is not supported"), param is left empty. Pure; any thread.
[[nodiscard]] Expected<Program> compile(const wire::Constraint& constraint, const Limits& limits = {});
/// The same, only to know whether it compiles.
[[nodiscard]] Expected<void> check(const wire::Constraint& constraint);

}  // namespace baton::grammar
