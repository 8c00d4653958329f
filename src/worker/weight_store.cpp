#include "worker/weight_store.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"

namespace baton::worker {
namespace {

constexpr uint64_t kPageBytes = 4096;

/// A zeroed memory file that keeps its size and can still be sealed against writing.
Expected<UniqueFd> make_image_file(uint64_t bytes) {
    UniqueFd fd(::memfd_create("baton-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return fail(ErrorCode::kIo, std::string("cannot make a memory file: ") + std::strerror(errno));
    return fd;
}

/// Only what nobody can write any more is handed on.
bool is_sealed(int fd) {
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    const int seals = ::fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & kSeals) == kSeals;
}

std::string short_name(const Digest& key) { return to_hex(key).substr(0, 12); }

}  // namespace

void WeightStore::refuse(uint64_t owner) {
    owners_.erase(owner);
    send_(owner, {}, -1);
}

void WeightStore::open(TimeMs now, uint64_t owner, const wire::WeightsOpen& ask) {
    if (owners_.contains(owner)) return;
    auto it = images_.find(ask.key);
    if (ask.bytes == 0 || ask.bytes > options_.bytes_max || ask.bytes % kPageBytes != 0) return refuse(owner);
    if (it == images_.end()) {
        if (images_.size() >= limits::kReplicasMax) return refuse(owner);
        it = images_.emplace(ask.key, Image{}).first;
        it->second.bytes = ask.bytes;
        owners_.emplace(owner, ask.key);
        return let_fill(now, it, owner);
    }
    Image& image = it->second;
    if (image.bytes != ask.bytes) return refuse(owner);
    owners_.emplace(owner, ask.key);
    if (image.filler != 0) {
        image.waiting.push_back(owner);
        log::debug("weights.awaited", {{"model_uid", ask.model_uid}, {"key", short_name(ask.key)}});
        return;
    }
    image.holders.insert(owner);
    send_(owner, {wire::WeightsState::kReady, image.bytes}, image.fd.get());
}

/// Each filler gets a new file: the one before may still write into the old one, and left parts of it behind.
void WeightStore::let_fill(TimeMs now, Images::iterator it, uint64_t owner) {
    Image& image = it->second;
    auto file = make_image_file(image.bytes);
    if (!file) {
        log::warn("weights.not_made", {{"key", short_name(it->first)}, {"bytes", image.bytes}, {"error", file.error().message}});
        const auto waiting = std::move(image.waiting);
        images_.erase(it);
        refuse(owner);
        for (const uint64_t other : waiting) refuse(other);
        return;
    }
    image.fd = std::move(*file);
    image.filler = owner;
    image.fill_until = now + wire::weights_fill_ms(image.bytes);
    send_(owner, {wire::WeightsState::kFill, image.bytes}, image.fd.get());
}

void WeightStore::filled(TimeMs now, uint64_t owner, bool ok) {
    const auto known = owners_.find(owner);
    if (known == owners_.end()) return;
    const auto it = images_.find(known->second);
    if (it == images_.end() || it->second.filler != owner) return;
    Image& image = it->second;
    if (!ok || !is_sealed(image.fd.get())) {
        log::warn("weights.given_up", {{"key", short_name(it->first)}, {"sealed", !ok ? "no" : "not as it should be"}});
        owners_.erase(owner);
        return replace_filler(now, it);
    }
    image.filler = 0;
    image.holders.insert(owner);
    // What goes to others from here on cannot even ask to write. Without /proc the sealed descriptor does.
    if (UniqueFd read_only(::open(("/proc/self/fd/" + std::to_string(image.fd.get())).c_str(), O_RDONLY | O_CLOEXEC)); read_only)
        image.fd = std::move(read_only);
    log::info("weights.ready", {{"key", short_name(it->first)}, {"bytes", image.bytes}, {"waiting", image.waiting.size()}});
    for (const uint64_t other : std::exchange(image.waiting, {})) {
        image.holders.insert(other);
        send_(other, {wire::WeightsState::kReady, image.bytes}, image.fd.get());
    }
}

void WeightStore::replace_filler(TimeMs now, Images::iterator it) {
    Image& image = it->second;
    image.filler = 0;
    image.fd.reset();
    if (image.waiting.empty()) {
        images_.erase(it);
        return;
    }
    const uint64_t next = image.waiting.front();
    image.waiting.pop_front();
    let_fill(now, it, next);
}

void WeightStore::gone(TimeMs now, uint64_t owner) {
    const auto known = owners_.find(owner);
    if (known == owners_.end()) return;
    const auto it = images_.find(known->second);
    owners_.erase(known);
    if (it == images_.end()) return;
    Image& image = it->second;
    if (image.filler == owner) return replace_filler(now, it);
    std::erase(image.waiting, owner);
    image.holders.erase(owner);
    drop_if_unused(it);
}

void WeightStore::drop_if_unused(Images::iterator it) {
    const Image& image = it->second;
    if (image.filler != 0 || !image.holders.empty()) return;
    log::info("weights.dropped", {{"key", short_name(it->first)}, {"bytes", image.bytes}});
    images_.erase(it);
}

void WeightStore::on_tick(TimeMs now) {
    for (auto it = images_.begin(); it != images_.end();) {
        const auto here = it++;  // replacing a filler may erase its image, no other
        if (here->second.filler == 0 || now < here->second.fill_until) continue;
        log::warn("weights.slow", {{"key", short_name(here->first)}, {"bytes", here->second.bytes}});
        owners_.erase(here->second.filler);
        replace_filler(now, here);
    }
}

WeightStore::Counts WeightStore::counts() const {
    Counts c;
    c.images = images_.size();
    for (const auto& [key, image] : images_) {
        c.filling += image.filler != 0 ? 1 : 0;
        c.holders += image.holders.size();
        c.waiting += image.waiting.size();
    }
    return c;
}

}  // namespace baton::worker
