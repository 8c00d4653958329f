#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"
#include "baton/net/connection.hpp"
#include "baton/wire/messages.hpp"

namespace baton::net {

/// Bodies of a Hello are at most this long, so that a stranger can make us hold no more.
inline constexpr uint32_t kHelloBytesMax = 4096;

/// Which end of a link this is. It is part of the proof, so that a proof cannot be sent back to its maker.
enum class Side : uint8_t { kConnecting = 'C', kAccepting = 'A' };

/// HMAC-SHA-256(secret, "baton-link-1" ‖ side ‖ len ‖ other's challenge ‖ len ‖ own challenge ‖ len ‖ kind ‖ len ‖ name),
/// lengths as u32, as lower-case hex.
[[nodiscard]] std::string link_proof(Side side, const Identity& self, std::string_view others_challenge,
                                     std::string_view own_challenge);

/// The mutual handshake, without I/O:
///   connecting → Hello{challenge c}          accepting → Hello{challenge a, proof over c}
///   connecting → Hello{challenge c, proof over a}
/// Each end goes on only when the other's proof fits the shared secret.
class Handshake {
  public:
    Handshake(Side side, Identity self, std::string challenge);

    struct Step {
        std::optional<wire::Message> reply;
        bool done = false;  ///< after the reply is sent
    };
    /// What to send unasked (connecting end only).
    [[nodiscard]] std::optional<wire::Message> first() const;
    /// kUnauthorized for a wrong proof, kUnsupported for another protocol version, kCorrupt for anything unexpected.
    /// The error of a Refused is passed on.
    [[nodiscard]] Expected<Step> on_message(const wire::Message& message);
    /// The other side's Hello, once done.
    [[nodiscard]] const wire::Hello& peer() const { return peer_; }

  private:
    [[nodiscard]] wire::Hello hello(std::string proof) const;
    [[nodiscard]] bool proven(const wire::Hello& h) const;

    Side side_;
    Identity self_;
    std::string challenge_;
    wire::Hello peer_;
    bool heard_ = false;
};

}  // namespace baton::net
