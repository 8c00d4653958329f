#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>

#include "baton/base/clock.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/fd.hpp"
#include "baton/wire/messages.hpp"

namespace baton::worker {

/// Packed weights that the replicas of this host share: one memory file for each key in use. The first replica that asks
/// fills it, the others wait; who fills and is lost or takes too long is replaced by one that waits, with a new file. A file
/// goes with the last link that holds it. Owners are links; one image each. One thread.
class WeightStore {
  public:
    struct Options {
        uint64_t bytes_max = 0;  ///< of one image; 0: nothing is shared
    };
    /// Sends a grant to an owner, with `fd` (a loan) unless that is -1. Must not call back into the store.
    using Send = std::function<void(uint64_t owner, const wire::WeightsGrant&, int fd)>;

    WeightStore(Options options, Send send) : options_(options), send_(std::move(send)) {}

    void open(TimeMs now, uint64_t owner, const wire::WeightsOpen& ask);
    void filled(TimeMs now, uint64_t owner, bool ok);
    /// The owner's link is closed.
    void gone(TimeMs now, uint64_t owner);
    void on_tick(TimeMs now);

    struct Counts {
        size_t images = 0, filling = 0, holders = 0, waiting = 0;
        friend bool operator==(const Counts&, const Counts&) = default;
    };
    [[nodiscard]] Counts counts() const;

  private:
    struct Image {
        UniqueFd fd;
        uint64_t bytes = 0;
        uint64_t filler = 0;  ///< 0: it is ready
        TimeMs fill_until{};
        std::set<uint64_t> holders;
        std::deque<uint64_t> waiting;
    };
    using Images = std::map<Digest, Image>;

    void let_fill(TimeMs now, Images::iterator it, uint64_t owner);
    void replace_filler(TimeMs now, Images::iterator it);
    void drop_if_unused(Images::iterator it);
    void refuse(uint64_t owner);

    Options options_;
    Send send_;
    Images images_;
    std::unordered_map<uint64_t, Digest> owners_;
};

}  // namespace baton::worker
