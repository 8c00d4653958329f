#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::cli {

/// One HTTP/1.1 answer that carries server-sent events of a completion, taken in pieces as they come. A load of tens of
/// thousands of events a second must not be slowed by its observer: in an event the text is looked for, not parsed; only
/// usage and errors are parsed. No input or output of its own; one thread.
class AnswerReader {
  public:
    /// Takes the next bytes and returns how many events with text they ended. Bytes behind the answer's end are an error.
    uint32_t feed(std::string_view bytes);
    /// The connection was closed by the server: the end of an answer without a length, an error within any other.
    void close();
    /// Ready for the next answer of a connection.
    void reset() { *this = AnswerReader{}; }

    [[nodiscard]] bool begun() const { return begun_; }
    /// The answer is over, well or badly.
    [[nodiscard]] bool done() const { return state_ == State::kOver; }
    /// Another request may be sent on the connection.
    [[nodiscard]] bool reusable() const { return done() && keep_ && !broken_; }
    /// "" for an answer with status 200, whole and without an error event.
    [[nodiscard]] const std::string& error() const { return error_; }
    [[nodiscard]] int status() const { return status_; }
    [[nodiscard]] uint64_t input_tokens() const { return input_tokens_; }
    [[nodiscard]] uint64_t output_tokens() const { return output_tokens_; }

  private:
    enum class State : uint8_t { kHead, kLength, kUntilClose, kChunkSize, kChunk, kChunkEnd, kTrailer, kOver };
    size_t take(std::string_view bytes);
    /// Gathers a line that ends within `bytes`; false where it does not end yet. `used` bytes were taken.
    bool line(std::string_view bytes, size_t& used);
    void head_line();
    void body_begins();
    void body(std::string_view bytes);
    void event_line(std::string_view line);
    void event(std::string_view data);
    void finish();
    void fail(std::string why);

    State state_ = State::kHead;
    bool begun_ = false, keep_ = true, chunked_ = false, has_length_ = false, broken_ = false, finished_ = false;
    int status_ = 0;
    uint64_t left_ = 0;        ///< bytes of the body or of the chunk
    size_t head_bytes_ = 0;
    std::string line_;         ///< of the head, a chunk's size or the trailer
    std::string partial_;      ///< an event's line that has begun
    std::string error_body_;
    std::string error_;
    uint32_t texts_ = 0;       ///< in the bytes of this feed()
    uint64_t input_tokens_ = 0, output_tokens_ = 0;
};

/// Whether an event's JSON has a text that is not empty.
[[nodiscard]] bool has_text(std::string_view event);

}  // namespace baton::cli
