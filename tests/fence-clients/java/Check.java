// JDBC: the recipe of the guide on one connection.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

public class Check {
    interface Step {
        void run() throws SQLException;
    }

    /* recipe */

    static void say(Step step) {
        try {
            step.run();
            System.out.println("null");
        } catch (SQLException error) {
            String[] why = why(error);
            System.out.println("[\"" + why[0] + "\", \"" + why[1].replace("\"", "\\\"") + "\"]");
        }
    }

    public static void main(String[] arguments) throws SQLException {
        String fresh = System.getenv("NEW");
        String late = System.getenv("OLD");
        try (Connection connection = DriverManager.getConnection(System.getenv("JDBC"))) {
            say(() -> sell(connection, fresh, 14, "bob"));
            say(() -> sell(connection, late, 14, "ada"));
            say(() -> {
                try (Statement plain = connection.createStatement()) {
                    plain.executeUpdate("UPDATE seats SET owner = 'nobody' WHERE seat_id = 14");
                }
            });
            say(() -> sell(connection, fresh, 14, "bob again"));
        }
    }
}
