#pragma once

#include <cstddef>
#include <cstdint>

/// Every bound of the system, by name. Settings may lower most of them; nothing raises one without a change here.
namespace baton::limits {

// HTTP (docs/API.md)
inline constexpr size_t kHeaderBytesMax = 16 * 1024;
inline constexpr size_t kHeaderFieldsMax = 100;
inline constexpr size_t kTargetBytesMax = 8 * 1024;
inline constexpr size_t kBodyBytesMax = 8 * 1024 * 1024;
inline constexpr int64_t kHeaderTimeoutMs = 10'000;
inline constexpr int64_t kTlsHandshakeTimeoutMs = 10'000;
inline constexpr size_t kTlsHandshakesMax = 128;
inline constexpr int64_t kBodyTimeoutMs = 30'000;
inline constexpr int64_t kIdleTimeoutMs = 60'000;
inline constexpr int64_t kWriteStallMs = 30'000;
inline constexpr int64_t kSsePingMs = 15'000;
inline constexpr size_t kConnectionsMax = 4096;
inline constexpr size_t kSseFrameBytesMax = 60 * 1024;
inline constexpr size_t kStreamBufferBytesMax = 1024 * 1024;
inline constexpr size_t kJsonDepthMax = 128;
inline constexpr size_t kErrorEchoBytesMax = 256;

// Requests
inline constexpr size_t kWaitingRequestsMax = 512;
inline constexpr int64_t kRequestTimeoutMs = 600'000;
inline constexpr size_t kSequencesPerRequestMax = 16;
inline constexpr size_t kStopStringsMax = 4;
inline constexpr size_t kStopStringBytesMax = 256;
inline constexpr size_t kStopTokenIdsMax = 128;
inline constexpr size_t kLogitBiasMax = 1024;
inline constexpr size_t kTopLogprobsMax = 20;
inline constexpr size_t kMessagesMax = 4096;
inline constexpr size_t kRequestIdBytesMax = 128;

// Wire
inline constexpr uint32_t kFrameBytesMax = 64 * 1024 * 1024;
inline constexpr size_t kContextTokensMax = 1 << 20;
inline constexpr size_t kBlocksPerSequenceMax = 1 << 17;
inline constexpr size_t kReplicasMax = 256;
inline constexpr size_t kWireStringBytesMax = 1024 * 1024;

// Liveness
inline constexpr int64_t kHeartbeatMs = 1'000;
inline constexpr int64_t kSilenceMs = 5'000;
inline constexpr int64_t kLeaseMs = 3'000;
inline constexpr int64_t kHandshakeTimeoutMs = 5'000;
inline constexpr int64_t kTransferTimeoutMs = 5'000;
inline constexpr int64_t kSupervisorGraceMs = 60'000;
inline constexpr int64_t kExitCloseMs = 300;  ///< links that were told to close get that before the process ends
inline constexpr int kRestartsMax = 5;
inline constexpr int64_t kRestartWindowMs = 60'000;

// Templates (docs/API.md)
inline constexpr size_t kTemplateBytesMax = 256 * 1024;
inline constexpr int kTemplateDepthMax = 128;
inline constexpr size_t kTemplateRangeMax = 100'000;
inline constexpr size_t kTemplateLoopsMax = 1'000'000;
inline constexpr size_t kTemplateOutputBytesMax = 64 * 1024 * 1024;
inline constexpr int64_t kTemplateTimeMs = 1'000;

// Files
inline constexpr size_t kModelTensorsMax = 65'536;
inline constexpr size_t kModelHeaderBytesMax = 100u * 1024 * 1024;
inline constexpr size_t kModelStringBytesMax = 16u * 1024 * 1024;
inline constexpr size_t kTensorDimsMax = 4;

}  // namespace baton::limits
