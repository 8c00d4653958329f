#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/grammar/grammar.hpp"
#include "grammar/expr.hpp"

namespace baton::grammar {

using StateId = uint32_t;
inline constexpr StateId kNoState = UINT32_MAX;

/// Moves on one byte within [low, high].
struct ByteEdge {
    uint8_t low = 0, high = 0;
    StateId to = 0;
};
/// Moves on no byte.
struct Move {
    enum class Kind : uint8_t { kJump, kCall, kCount };
    Kind kind = Kind::kJump;
    StateId to = 0;      ///< kCall: where it goes on when the rule has ended; kCount: when counted enough
    StateId entry = 0;   ///< kCall, kCount: of the rule called
    uint32_t least = 0;  ///< kCount: how often the rule is matched
    uint32_t most = 0;   ///< or kUnbounded
};

struct State {
    uint32_t bytes_at = 0, moves_at = 0;
    uint16_t bytes = 0, moves = 0;
    uint8_t height = 0;    ///< frames beyond those of its rule that it takes to reach the rule's end
    bool final = false;    ///< its rule may end here
    bool tail = false;     ///< nothing is left of its rule but to end
    bool counts = false;   ///< its one move is a kCount
};

/// Nondeterministic automata, one a rule, that call each other. A call pushes the state to return to. Only states from which
/// the rule's end can be reached are left in it.
struct ProgramData {
    std::vector<State> states;
    std::vector<ByteEdge> byte_edges;
    std::vector<Move> moves;
    StateId entry = 0;
    uint32_t frames_max = 0;
    std::array<uint8_t, 256> class_of{};  ///< bytes that no edge tells apart have one class
    std::vector<uint8_t> class_byte;      ///< a byte of each class
};

/// The automaton of rule `root`. kInvalidArgument for left recursion (naming the rule), no possible text, or more states than
/// allowed.
[[nodiscard]] Expected<Program> make_program(const ExprPool& pool, RuleId root, const Limits& limits);

/// The error for a constraint that is beyond the limits.
[[nodiscard]] tl::unexpected<Error> too_large();

}  // namespace baton::grammar
