#include "net/handshake.hpp"

#include <cstring>
#include <vector>

#include "baton/base/digest.hpp"

namespace baton::net {
namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kNameBytesMax = 256;
constexpr size_t kChallengeBytesMin = 32;
constexpr size_t kChallengeBytesMax = 128;
constexpr size_t kReasonBytesMax = 512;

void append(std::vector<std::byte>& out, std::string_view text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    out.insert(out.end(), p, p + text.size());
}

void append_sized(std::vector<std::byte>& out, std::string_view text) {
    const auto n = static_cast<uint32_t>(text.size());
    for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<std::byte>((n >> shift) & 0xff));
    append(out, text);
}

Expected<void> check_hello(const wire::Hello& h) {
    if (h.version != kVersion)
        return fail(ErrorCode::kUnsupported, "the other side speaks link version " + std::to_string(h.version) +
                                                 ", this one " + std::to_string(kVersion));
    if (h.kind.empty() || h.kind.size() > kNameBytesMax || h.name.size() > kNameBytesMax ||
        h.challenge.size() < kChallengeBytesMin || h.challenge.size() > kChallengeBytesMax)
        return fail(ErrorCode::kCorrupt, "malformed hello");
    return {};
}

Error refusal(const wire::Refused& r) {
    const auto code = static_cast<ErrorCode>(r.code);
    const bool known = code > ErrorCode::kOk && code <= ErrorCode::kCancelled;
    return {known ? code : ErrorCode::kUnavailable, "refused: " + r.reason.substr(0, kReasonBytesMax), {}};
}

}  // namespace

std::string link_proof(Side side, const Identity& self, std::string_view others_challenge, std::string_view own_challenge) {
    std::vector<std::byte> text;
    append(text, "baton-link-1");
    text.push_back(static_cast<std::byte>(side));
    append_sized(text, others_challenge);
    append_sized(text, own_challenge);
    append_sized(text, self.kind);
    append_sized(text, self.name);
    return to_hex(hmac_sha256(self.secret, text));
}

Handshake::Handshake(Side side, Identity self, std::string challenge)
    : side_(side), self_(std::move(self)), challenge_(std::move(challenge)) {}

wire::Hello Handshake::hello(std::string proof) const {
    return {kVersion, self_.kind, self_.name, challenge_, std::move(proof)};
}

bool Handshake::proven(const wire::Hello& h) const {
    const Side other = side_ == Side::kConnecting ? Side::kAccepting : Side::kConnecting;
    const Identity theirs{h.kind, h.name, self_.secret};
    return equal_constant_time(link_proof(other, theirs, challenge_, h.challenge), h.proof);
}

std::optional<wire::Message> Handshake::first() const {
    if (side_ == Side::kAccepting) return std::nullopt;
    return hello("");
}

Expected<Handshake::Step> Handshake::on_message(const wire::Message& message) {
    if (const auto* refused = std::get_if<wire::Refused>(&message)) return fail(refusal(*refused));
    const auto* h = std::get_if<wire::Hello>(&message);
    if (h == nullptr) return fail(ErrorCode::kCorrupt, "expected a hello");
    BATON_TRY(check_hello(*h));

    if (side_ == Side::kAccepting && !heard_) {
        heard_ = true;
        peer_ = *h;
        return Step{hello(link_proof(side_, self_, h->challenge, challenge_)), false};
    }
    if (side_ == Side::kAccepting &&
        (h->kind != peer_.kind || h->name != peer_.name || h->challenge != peer_.challenge))
        return fail(ErrorCode::kCorrupt, "the two hellos contradict each other");
    if (!proven(*h)) return fail(ErrorCode::kUnauthorized, "the other side does not know the shared secret");
    peer_ = *h;
    if (side_ == Side::kAccepting) return Step{std::nullopt, true};
    return Step{hello(link_proof(side_, self_, h->challenge, challenge_)), true};
}

}  // namespace baton::net
