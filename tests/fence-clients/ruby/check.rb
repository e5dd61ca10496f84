# Active Record: the recipe of the guide on one connection.
require "active_record"
require "json"
require "pg"
require "uri"

at = URI(ENV["DATABASE"])
ActiveRecord::Base.establish_connection(adapter: "postgresql", host: at.host, port: at.port, username: "postgres",
                                        database: at.path[1..], pool: 1)

class Seat < ActiveRecord::Base
  self.table_name = "seats"
  self.primary_key = "seat_id"
end

eval(File.read(ARGV[0]))

[
  -> { sell(ENV["NEW"], 14, "bob") },
  -> { sell(ENV["OLD"], 14, "ada") },
  -> { Seat.where(seat_id: 14).update_all(owner: "nobody") },
  -> { sell(ENV["NEW"], 14, "bob again") },
].each do |step|
  step.call
  puts "null"
rescue ActiveRecord::StatementInvalid => error
  puts JSON.generate(why(error))
end
