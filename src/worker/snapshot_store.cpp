#include "worker/snapshot_store.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <variant>

#include "baton/base/log.hpp"

namespace baton::worker {
namespace {

constexpr uint32_t kSlotsMax = 1u << 20;
constexpr uint64_t kSlotBytesMin = 512;

/// Slots a peer named that exist.
std::vector<uint32_t> existing(const std::vector<uint32_t>& slots, uint32_t count) {
    std::vector<uint32_t> out;
    std::copy_if(slots.begin(), slots.end(), std::back_inserter(out), [&](uint32_t s) { return s < count; });
    return out;
}

}  // namespace

SnapshotStore::SnapshotStore(boost::asio::io_context& io, Options options)
    : io_(io),
      options_(std::move(options)),
      timer_(io),
      weights_({options_.weight_bytes_max}, [this](uint64_t owner, const wire::WeightsGrant& grant, int fd) {
          const auto link = links_.find(owner);
          if (link == links_.end()) return;
          link->second.connection->send(grant, {}, fd < 0 ? std::vector<int>{} : std::vector<int>{fd});
      }) {}

SnapshotStore::~SnapshotStore() {
    *alive_ = false;
    close();
}

Expected<void> SnapshotStore::listen() {
    net::Identity self{"worker", options_.name, options_.secret};
    BATON_TRY_ASSIGN(listener_, net::Listener::listen(io_, {options_.socket_path, ""}, std::move(self),
                                                      [this, alive = alive_](std::shared_ptr<net::Connection> c) {
                                                          if (*alive) on_link(std::move(c));
                                                      }));
    tick();
    return {};
}

void SnapshotStore::close() {
    timer_.cancel();
    listener_.reset();
    for (auto& [owner, link] : std::exchange(links_, {})) link.connection->close();
}

void SnapshotStore::on_link(std::shared_ptr<net::Connection> connection) {
    if (connection->peer().kind != "replica") {
        connection->close();
        return;
    }
    const uint64_t owner = next_owner_++;
    links_[owner].connection = connection;
    connection->start({[this, owner, alive = alive_](net::Connection::Received r) {
                           if (*alive) on_message(owner, r.message);
                       },
                       [this, owner, alive = alive_](const Error&) {
                           if (*alive) on_close(owner);
                       }});
}

void SnapshotStore::on_close(uint64_t owner) {
    if (File* file = file_of(owner)) file->index->owner_gone(steady_now(), owner);
    links_.erase(owner);
    weights_.gone(steady_now(), owner);
}

SnapshotStore::File* SnapshotStore::file_of(uint64_t owner) {
    const auto link = links_.find(owner);
    if (link == links_.end() || !link->second.open) return nullptr;
    const auto file = files_.find(link->second.identity);
    return file == files_.end() ? nullptr : &file->second;
}

/// True where the message was about packed weights.
bool SnapshotStore::on_weights(uint64_t owner, const wire::Message& message) {
    const TimeMs now = steady_now();
    if (const auto* done = std::get_if<wire::WeightsFilled>(&message)) {
        weights_.filled(now, owner, done->ok);
        return true;
    }
    const auto* ask = std::get_if<wire::WeightsOpen>(&message);
    if (ask == nullptr) return false;
    if (options_.is_running(ask->model_uid, ask->self)) weights_.open(now, owner, *ask);
    else links_.at(owner).connection->send(wire::WeightsGrant{});
    return true;
}

void SnapshotStore::on_message(uint64_t owner, const wire::Message& message) {
    if (!links_.contains(owner) || on_weights(owner, message)) return;
    if (const auto* ask = std::get_if<wire::StoreOpen>(&message)) {
        open(owner, *ask);
        return;
    }
    File* file = file_of(owner);
    const auto link = links_.find(owner);
    if (link == links_.end()) return;
    const TimeMs now = steady_now();
    if (const auto* allot = std::get_if<wire::StoreAllot>(&message)) {
        wire::StoreSlots reply{allot->ask, {}};
        if (file != nullptr) reply.slots = file->index->allot(now, owner, allot->keys);
        else reply.slots.assign(allot->keys.size(), UINT32_MAX);
        link->second.connection->send(reply);
    } else if (const auto* lease = std::get_if<wire::StoreLease>(&message)) {
        wire::StoreSlots reply{lease->ask, {}};
        if (file != nullptr) reply.slots = file->index->lease(now, owner, lease->keys);
        link->second.connection->send(reply);
    } else if (file == nullptr) {
        return;
    } else if (const auto* publish = std::get_if<wire::StorePublish>(&message)) {
        file->index->publish(now, owner, existing(publish->slots, file->slots), publish->ok);
    } else if (const auto* unlease = std::get_if<wire::StoreUnlease>(&message)) {
        file->index->unlease(now, owner, existing(unlease->slots, file->slots));
    }
}

void SnapshotStore::open(uint64_t owner, const wire::StoreOpen& ask) {
    auto link = links_.find(owner);
    if (link == links_.end() || link->second.open) return;
    auto& connection = *link->second.connection;
    File* file = options_.is_running(ask.model_uid, ask.self) ? find_or_make(ask) : nullptr;
    if (file == nullptr) {
        connection.send(wire::StoreReady{});
        return;
    }
    file->model_uids.insert(ask.model_uid);
    link->second.identity = ask.identity;
    link->second.open = true;
    connection.send(wire::StoreReady{file->slots, file->slot_bytes}, {}, {file->fd.get()});
}

/// Each new file gets half of what is left of the bound, so that a second model finds room too. The memory itself is taken
/// only as slots fill.
SnapshotStore::File* SnapshotStore::find_or_make(const wire::StoreOpen& ask) {
    if (const auto it = files_.find(ask.identity); it != files_.end())
        return it->second.slot_bytes == ask.block_bytes ? &it->second : nullptr;
    const uint64_t room = (options_.bytes_max - std::min(bytes_used_, options_.bytes_max)) / 2;
    if (ask.block_bytes < kSlotBytesMin || ask.block_bytes > room) return nullptr;
    File file;
    file.slots = static_cast<uint32_t>(std::min<uint64_t>(room / ask.block_bytes, kSlotsMax));
    file.slot_bytes = ask.block_bytes;
    file.bytes = file.slots * file.slot_bytes;
    auto memory = make_memfd("baton-snapshots", file.bytes);
    if (!memory) {
        log::warn("snapshots.not_made", {{"model_uid", ask.model_uid}, {"error", memory.error().message}});
        return nullptr;
    }
    file.fd = std::move(*memory);
    ::fchmod(file.fd.get(), 0600);
    file.index = std::make_unique<kv::SnapshotIndex>(file.slots, options_.lease_ms);
    bytes_used_ += file.bytes;
    log::info("snapshots.made", {{"model_uid", ask.model_uid}, {"slots", file.slots}, {"bytes", file.bytes}});
    return &files_.emplace(ask.identity, std::move(file)).first->second;
}

void SnapshotStore::model_gone(const std::string& model_uid) {
    for (auto it = files_.begin(); it != files_.end();) {
        it->second.model_uids.erase(model_uid);
        if (!it->second.model_uids.empty()) {
            ++it;
            continue;
        }
        bytes_used_ -= it->second.bytes;
        log::info("snapshots.dropped", {{"model_uid", model_uid}});
        it = files_.erase(it);
    }
}

kv::SnapshotIndex::Counts SnapshotStore::counts() const {
    kv::SnapshotIndex::Counts sum;
    for (const auto& [identity, file] : files_) {
        const auto c = file.index->counts();
        sum.free += c.free;
        sum.filling += c.filling;
        sum.complete += c.complete;
        sum.leased += c.leased;
    }
    return sum;
}

void SnapshotStore::tick() {
    for (auto& [identity, file] : files_) file.index->on_tick(steady_now());
    weights_.on_tick(steady_now());
    timer_.expires_after(std::chrono::milliseconds(200));
    timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
        if (!error && *alive) tick();
    });
}

}  // namespace baton::worker
