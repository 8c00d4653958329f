#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/grammar/matcher.hpp"
#include "baton/wire/messages.hpp"

namespace baton::grammar {

/// The constraints of a replica's sequences: compiled on a thread of its own, kept for the sequences that come after, and where
/// each sequence stands. A sequence that another replica began stands where its emitted ids say.
class Constraints {
  public:
    using LoadVocabulary = std::function<std::shared_ptr<const Vocabulary>()>;
    /// `load` is called once, on the own thread, at once. `sequences_max`: sequences that may run at a time.
    static std::unique_ptr<Constraints> start(LoadVocabulary load, size_t sequences_max);
    virtual ~Constraints() = default;
    /// A sequence with this constraint has come: compiles it ahead of its first use. Any thread; does not wait.
    virtual void prepare(const wire::Constraint& constraint) = 0;
    /// Tokens that may come after the sequence's emitted ids and `next`, if given: a bit each, as many words as the vocabulary
    /// has. Its stop ids are among them where the text may end, and only there. Waits for the compilation, which is bounded.
    /// kInvalidArgument where the constraint cannot be followed. One thread; valid until the next call.
    [[nodiscard]] virtual Expected<std::span<const uint32_t>> mask(const wire::Sequence& sequence, std::optional<TokenId> next = {}) = 0;
    struct Figures {
        uint64_t compiled = 0, masks_found = 0, masks_reused = 0;
    };
    /// The thread of mask().
    [[nodiscard]] virtual Figures figures() const = 0;
};

}  // namespace baton::grammar
