#include "peer_links.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "baton/base/log.hpp"

namespace baton::replica {

struct PeerLinks::Link {
    std::shared_ptr<net::Connection> connection;
    wire::ReplicaTarget peer;
    bool dialled = false;  ///< we are the decode side
    bool greeted = false;  ///< its LinkHello arrived
    bool up = false;
    std::string mover;
    std::string reason;
};

namespace {

std::string name_of(const wire::ReplicaTarget& t) {
    return std::to_string(t.replica.value - 1) + "@" + std::to_string(t.epoch.value);
}

}  // namespace

PeerLinks::PeerLinks(Services services) : services_(std::move(services)) {
    if (const auto faults = xavier::parse_faults(services_.settings.fault)) {
        drop_ = faults->drop;
        if (faults->nccl_one_gpu) {
            const std::string host = services_.host_id + "-" + std::to_string(services_.settings.replica.value);
            ::setenv("NCCL_HOSTID", host.c_str(), 1);
            ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
        }
    }
    if (services_.device == nullptr) return;
    auto handle = services_.device->export_handle();
    if (handle) device_handle_ = std::move(*handle);
    else log::warn("xavier.pool_not_shared", {{"reason", handle.error().message}});
}
PeerLinks::~PeerLinks() { close(); }

Expected<net::Endpoint> PeerLinks::listen() {
    const config::ReplicaSettings& s = services_.settings;
    const net::Endpoint at{s.listen_unix, s.listen_tcp_ip.empty() ? "" : s.listen_tcp_ip + ":0"};
    if (at.unix_path.empty() && at.tcp_address.empty()) return net::Endpoint{};
    BATON_TRY_ASSIGN(listener_, net::Listener::listen(services_.io, at,
                                                      {"peer", s.model_uid + "/" + std::to_string(s.replica.value), services_.secret},
                                                      [this](std::shared_ptr<net::Connection> c) { accepted(std::move(c)); }));
    return listener_->endpoint();
}

wire::LinkHello PeerLinks::own_hello(const Link& link) const {
    wire::LinkHello hello;
    hello.self = {services_.settings.replica, services_.settings.epoch};
    hello.host_id = services_.host_id;
    hello.model = services_.model;
    hello.layout = xavier::to_wire(services_.pool.layout());
    // TCP passes no descriptors.
    hello.wants_map = services_.settings.mover != "tcp" && link.connection->remote() == "unix";
    hello.verify = services_.settings.verify_handoff;
    hello.device = services_.device != nullptr;
    if (!hello.device) return hello;
    const auto linkable = services_.device->linkable();
    hello.nccl = linkable.has_value();
    if (!linkable) hello.nccl_reason = linkable.error().message;
    if (!device_handle_.empty()) hello.gpu = services_.device->gpu();
    if (!unmappable_.contains({link.peer.replica, link.peer.epoch})) hello.maps_gpus = services_.device->mappable_gpus();
    return hello;
}

void PeerLinks::set_peers(const wire::Peers& peers) {
    if (closed_) return;
    std::map<ReplicaId, wire::Peer> named;
    for (const wire::Peer& p : peers.peers) named[p.target.replica] = p;

    // A link to a process that was replaced, or is gone, ends now; its sequences must not wait for silence.
    std::vector<LinkPtr> stale;
    for (const auto& [id, link] : links_) {
        const auto it = named.find(id);
        if (it == named.end() || it->second.target.epoch > link->peer.epoch) stale.push_back(link);
    }
    for (const LinkPtr& link : stale) link->connection->close();

    if (services_.settings.role != Role::kDecode) return;
    wanted_.clear();
    for (const auto& [id, peer] : named) {
        if (static_cast<Role>(peer.role) != Role::kPrefill) continue;
        wanted_[id] = peer;
        const auto it = links_.find(id);
        if (it == links_.end() || it->second->peer.epoch != peer.target.epoch) dial(peer);
    }
}

void PeerLinks::dial(const wire::Peer& peer) {
    // The list may be told again while a connection is on its way: a second link to one process would end with the first
    // one's close taking the source away from it.
    const auto under_way = dialling_.find(peer.target.replica);
    if (under_way != dialling_.end() && under_way->second == peer.target) return;
    dialling_[peer.target.replica] = peer.target;
    net::Endpoint to;
    const bool same_host = peer.host_id == services_.host_id;
    if (same_host && !peer.unix_path.empty()) to.unix_path = peer.unix_path;
    else to.tcp_address = peer.tcp_address;
    net::connect(services_.io, to,
                 {"peer", services_.settings.model_uid + "/" + std::to_string(services_.settings.replica.value), services_.secret},
                 limits::kHandshakeTimeoutMs,
                 [this, peer, alive = std::weak_ptr<bool>(alive_)](Expected<std::shared_ptr<net::Connection>> c) {
                     if (alive.expired() || closed_) return;
                     const auto mine = dialling_.find(peer.target.replica);
                     if (mine != dialling_.end() && mine->second == peer.target) dialling_.erase(mine);
                     const auto wanted = wanted_.find(peer.target.replica);
                     if (wanted == wanted_.end() || wanted->second.target != peer.target) {
                         if (c) (*c)->close();
                         return;
                     }
                     if (c) return dialled(peer, std::move(*c));
                     log::warn("xavier.dial_failed", {{"peer", name_of(peer.target)}, {"reason", c.error().message}});
                     redial_later(peer.target.replica);
                 });
}

void PeerLinks::dialled(const wire::Peer& peer, std::shared_ptr<net::Connection> connection) {
    auto link = std::make_shared<Link>();
    link->connection = std::move(connection);
    link->peer = peer.target;
    link->dialled = true;
    links_[peer.target.replica] = link;
    attach(link);
    link->connection->send(own_hello(*link));
}

void PeerLinks::redial_later(ReplicaId replica) {
    const int failures = std::min(++dial_failures_[replica], 6);
    auto timer = std::make_shared<boost::asio::steady_timer>(services_.io, std::chrono::milliseconds(50 << failures));
    timer->async_wait([this, replica, timer, alive = std::weak_ptr<bool>(alive_)](boost::system::error_code ec) {
        if (ec || alive.expired() || closed_) return;
        const auto it = wanted_.find(replica);
        if (it == wanted_.end()) return;
        const auto link = links_.find(replica);
        if (link != links_.end() && link->second->peer == it->second.target) return;
        dial(it->second);
    });
}

void PeerLinks::accepted(std::shared_ptr<net::Connection> connection) {
    if (closed_) return connection->close();
    auto link = std::make_shared<Link>();
    link->connection = std::move(connection);
    strangers_.insert(link);
    attach(link);
}

void PeerLinks::attach(const LinkPtr& link) {
    link->connection->start({
        [this, link, alive = std::weak_ptr<bool>(alive_)](net::Connection::Received r) {
            if (!alive.expired()) on_message(link, std::move(r));
        },
        [this, link, alive = std::weak_ptr<bool>(alive_)](const Error& e) {
            if (!alive.expired()) on_close(link, e);
        },
    });
}

void PeerLinks::on_message(const LinkPtr& link, net::Connection::Received received) {
    if (auto* hello = std::get_if<wire::LinkHello>(&received.message)) {
        if (!link->greeted) on_hello(link, *hello, std::move(received.fds));
        return;
    }
    if (auto* refused = std::get_if<wire::Refused>(&received.message)) {
        link->reason = refused->reason;
        link->connection->close();
        return;
    }
    if (!link->up) return;
    if (auto* extent = std::get_if<wire::ExtentHeader>(&received.message)) {
        services_.transfer().on_extent(link->peer, *extent, std::move(received.payload));
        return;
    }
    if (std::holds_alternative<wire::ChannelPair>(received.message) || std::holds_alternative<wire::ChannelExtent>(received.message) ||
        std::holds_alternative<wire::ChannelGo>(received.message) || std::holds_alternative<wire::ChannelSent>(received.message))
        return services_.transfer().on_channel_message(link->peer, std::move(received.message));
    if (auto* pull = std::get_if<wire::PullRequest>(&received.message)) {
        services_.transfer().on_pull_request(link->peer, std::move(*pull), link->connection);
        return;
    }
    if (services_.seen) services_.seen(received.message);
    services_.engine().post([peer = link->peer, message = std::move(received.message)](pd::ReplicaCore& core, TimeMs now) {
        core.on_peer(now, peer, message);
    });
}

void PeerLinks::on_hello(const LinkPtr& link, const wire::LinkHello& hello, std::vector<UniqueFd> fds) {
    link->greeted = true;
    strangers_.erase(link);
    wire::LinkHello own = own_hello(*link);
    if (hello.self.replica.value == 0 || (link->dialled && hello.self != link->peer))
        return refuse(link, {ErrorCode::kInvalidArgument, "another replica answered", ""});
    link->peer = hello.self;
    if (hello.model != own.model) return refuse(link, {ErrorCode::kUnsupported, "the peer serves another model", ""});
    const wire::LinkHello& decode = link->dialled ? own : hello;
    const wire::LinkHello& prefill = link->dialled ? hello : own;
    auto mover = xavier::choose_mover(decode, prefill, services_.settings.mover);
    if (!mover) return refuse(link, mover.error());
    if (!link->dialled) {
        // A newer process of the same slot replaces the older one's link.
        const auto old = links_.find(link->peer.replica);
        if (old != links_.end() && old->second != link) {
            if (old->second->peer.epoch > link->peer.epoch)
                return refuse(link, {ErrorCode::kInvalidArgument, "a newer process of that replica is linked", ""});
            set_down(old->second, "replaced");
            old->second->connection->close();
        }
        links_[link->peer.replica] = link;
        std::vector<int> pass;
        if (*mover == "shm" || *mover == "cuda_ipc") pass.push_back(services_.pool.fd());
        if (*mover == "cuda_ipc") {
            const auto* bytes = reinterpret_cast<const uint8_t*>(device_handle_.data());
            own.device_handle.assign(bytes, bytes + device_handle_.size());
        }
        link->connection->send(own, {}, pass);
        return set_up(link, *mover);
    }
    if (auto added = add_source(link, hello, *mover, std::move(fds)); !added) return refuse(link, added.error());
    set_up(link, *mover);
}

/// D: what it takes to pull from the peer.
Expected<void> PeerLinks::add_source(const LinkPtr& link, const wire::LinkHello& hello, const std::string& mover,
                                     std::vector<UniqueFd> fds) {
    BATON_TRY_ASSIGN(const kv::PoolLayout layout, xavier::from_wire(hello.layout));
    std::optional<UniqueFd> map;
    if (mover == "shm" || mover == "cuda_ipc") {
        if (fds.empty()) return fail(ErrorCode::kCorrupt, "the peer passed no memory");
        map = std::move(fds.front());
    }
    if (mover != "cuda_ipc")
        return services_.transfer().add_source(link->peer, layout, kProgressSlots, std::move(map), link->connection);
    auto added = services_.transfer().add_device_source(link->peer, layout, kProgressSlots, std::move(*map),
                                                        std::as_bytes(std::span(hello.device_handle)));
    // The next try does without, unless it was asked for.
    if (!added && services_.settings.mover.empty()) unmappable_.insert({link->peer.replica, link->peer.epoch});
    return added;
}

void PeerLinks::refuse(const LinkPtr& link, const Error& error) {
    log::error("xavier.link_refused", {{"peer", name_of(link->peer)}, {"reason", error.message}});
    link->reason = error.message;
    link->connection->send(wire::Refused{static_cast<uint8_t>(error.code), error.message});
    link->connection->close();
}

void PeerLinks::set_up(const LinkPtr& link, std::string mover) {
    link->up = true;
    link->mover = std::move(mover);
    if (link->mover == "nccl") services_.transfer().add_channel(link->peer, link->connection, !link->dialled);
    link->reason.clear();
    dial_failures_.erase(link->peer.replica);
    log::info("xavier.linked", {{"peer", name_of(link->peer)}, {"mover", link->mover}});
    services_.engine().post([peer = link->peer](pd::ReplicaCore& core, TimeMs now) { core.on_peer_up(now, peer); });
    report_links();
}

void PeerLinks::set_down(const LinkPtr& link, const std::string& reason) {
    if (!link->up) return;
    link->up = false;
    log::warn("xavier.link_lost", {{"peer", name_of(link->peer)}, {"reason", reason}});
    if (link->dialled) services_.transfer().remove_source(link->peer);
    else services_.transfer().drop_requester(link->peer);
    services_.engine().post([peer = link->peer](pd::ReplicaCore& core, TimeMs now) { core.on_peer_down(now, peer); });
}

void PeerLinks::on_close(const LinkPtr& link, const Error& error) {
    if (closed_) return;
    strangers_.erase(link);
    if (link->reason.empty()) link->reason = error.message;
    set_down(link, link->reason);
    const auto it = links_.find(link->peer.replica);
    if (it == links_.end() || it->second != link) return;
    report_links();
    links_.erase(it);
    if (link->dialled && wanted_.count(link->peer.replica) != 0) redial_later(link->peer.replica);
}

void PeerLinks::report_links() {
    wire::LinkState state;
    for (const auto& [id, link] : links_)
        if (link->greeted || (link->dialled && !link->reason.empty())) state.links.push_back({link->peer, link->up, link->mover, link->reason});
    services_.report(std::move(state));
}

void PeerLinks::send(wire::ReplicaTarget peer, const wire::Message& message) {
    const auto it = links_.find(peer.replica);
    if (it == links_.end() || !it->second->up || it->second->peer != peer) return;
    if (!drop_.empty() && drop_ == wire::name_of(message)) {
        log::warn("xavier.message_dropped", {{"message", drop_}});
        drop_.clear();
        return;
    }
    it->second->connection->send(message);
}

void PeerLinks::close() {
    if (closed_) return;
    closed_ = true;
    alive_.reset();
    listener_.reset();
    for (const auto& [id, link] : links_) link->connection->close();
    for (const LinkPtr& link : strangers_) link->connection->close();
    links_.clear();
    strangers_.clear();
}

}  // namespace baton::replica
