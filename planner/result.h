/// Result<T>: a value or an Error, for everything that may fail because of input or the world.
/// EXPECTS is for our own mistakes: always on, it stops the process and names the broken promise.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace troupe {

/// What went wrong, for code that reacts to it. Everything that only people read is in the text.
enum class ErrorCode {
  invalid_input,  ///< the user's file, flag or data is wrong; exit code 2
  does_not_fit,   ///< a plan needs more memory than a device has; exit code 3
  out_of_memory,  ///< an arena's cap was reached
  io,             ///< a file or a socket failed
  corrupt,        ///< bytes that were read are not the bytes that were written
  not_found,      ///< a named thing does not exist
  peer_lost,      ///< another process went away
  timeout,        ///< a deadline passed
  stale_epoch,    ///< a message of a superseded plan
  protocol,       ///< a peer speaks another version or sent what it must not send
  not_finite,     ///< NaN or infinity where a number is needed
  cancelled,      ///< the user asked to stop
  internal,       ///< a bug that was caught at a border
};

/// The stable name of a code, as it stands in events and JSON output: "does_not_fit".
const char* to_string(ErrorCode code);

/// One failure: a code for programs, a text for people. The text names the place, the reason and,
/// where there is one, the nearest right thing.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string text;
};

/// A value or an Error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : held_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return held_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(held_); }
  const T& value() const& { return std::get<0>(held_); }
  T&& value() && { return std::get<0>(std::move(held_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return std::get<1>(held_); }

 private:
  std::variant<T, Error> held_;
};

/// Success without a value, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

namespace detail {
[[noreturn]] void expects_failed(const char* condition, const char* file, int line);
}

}  // namespace troupe

/// Checks a promise of our own code, also in release builds; stops the process when it is broken.
#define EXPECTS(condition)      \
  (static_cast<bool>(condition) \
       ? static_cast<void>(0)   \
       : ::troupe::detail::expects_failed(#condition, __FILE__, __LINE__))

/// Returns the error of a Result from the current function when it holds one.
#define TROUPE_TRY(expression)                         \
  do {                                                 \
    auto&& troupe_try_ = (expression);                 \
    if (!troupe_try_.ok()) return troupe_try_.error(); \
  } while (false)
