#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"
#include "baton/grammar/grammar.hpp"
#include "baton/grammar/vocabulary.hpp"

namespace baton::grammar {

/// A compiled constraint over a vocabulary, with the masks found so far. Shared by all sequences that have the constraint;
/// one thread at a time.
class Runner {
  public:
    Runner(Program program, std::shared_ptr<const Vocabulary> vocabulary);
    ~Runner();
    Runner(Runner&&) noexcept;
    Runner& operator=(Runner&&) noexcept;

    /// Finds the mask of the beginning, so that the first token need not wait for it.
    void warm();
    /// Bytes of memory that what was found so far takes.
    [[nodiscard]] size_t bytes() const;

    struct Figures {
        uint64_t masks_found = 0;   ///< masks that had to be made
        uint64_t masks_reused = 0;
        uint64_t forgets = 0;       ///< times all was forgotten because it took too much memory
    };
    [[nodiscard]] Figures figures() const;

  private:
    friend class Matcher;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Where one text stands: follows its tokens and says which may come next. Everything in it follows from the ids, so another
/// replica that gets them stands at the same place. One thread, which is also the runner's.
class Matcher {
  public:
    /// `runner` outlives it.
    explicit Matcher(Runner& runner);

    /// Takes the next token. A token that the constraint does not allow (one that was sampled without the mask), ends it:
    /// only the end may follow. kInvalidArgument where the constraint is too ambiguous to be followed within bounds.
    [[nodiscard]] Expected<void> accept(TokenId token);
    /// Tokens that may come next, a bit each, lowest first, as many words as the vocabulary has. Valid until the next call
    /// of the runner or a matcher of it. Control tokens are in it only where the constraint names them.
    [[nodiscard]] Expected<std::span<const uint32_t>> mask();
    /// The text may end here.
    [[nodiscard]] bool may_end();
    /// Nothing but the end may follow.
    [[nodiscard]] bool must_end();
    /// Tokens taken.
    [[nodiscard]] size_t taken() const { return taken_.size(); }

  private:
    [[nodiscard]] Expected<void> follow(std::span<const uint8_t> bytes);
    [[nodiscard]] Expected<void> refresh();

    Runner* runner_;
    uint32_t config_ = 0;
    uint64_t era_ = 0;             ///< of the runner; another one: `config_` is void
    bool failed_ = false;          ///< a token came that is not allowed
    std::vector<TokenId> taken_;
};

}  // namespace baton::grammar
